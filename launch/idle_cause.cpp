// SPDX-License-Identifier: Apache-2.0
#include "launch/idle_cause.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr double kWorthTelling = 0.05;  // of the time

class IdleTime {
 public:
  IdleTime(const StepLine& line, const IdleContext& context) : line_(line), context_(context) {}

  IdleCause data() const {
    IdleCause cause = lost("data", line_.account[Phase::data_wait], "for data");
    if (context_.decodes) {
      cause.change =
          "images are decoded for each epoch anew: lockstep pack makes records, which are only read";
    } else if (!context_.preloads) {
      set(cause, "data.loader", "preload");
    } else if (context_.loader_threads > 0) {
      set(cause, "data.loader_threads", "0");
    } else {
      cause.change = "the loader has too few cores: train.threads one lower leaves it one";
    }
    return cause;
  }

  IdleCause communication(const std::optional<Advice>& advice) const {
    IdleCause cause = lost("communication", line_.account[Phase::exposed_communication], "for other ranks");
    if (advice) {
      cause.key = advice->key;
      cause.value = advice->value;
      cause.change = advice->without_estimate;
      cause.samples_per_second = std::max(advice->samples_per_second, line_.samples_per_second);
    } else {
      set(cause, "train.accumulation", std::to_string(2 * context_.accumulation));
      gain(cause, cause.lost_seconds / 2);
    }
    return cause;
  }

  // Where threads are more than cores, a rank that waits for another waits for its core.
  IdleCause allocation() const {
    const int wanted = context_.local_ranks * context_.threads;
    if (context_.on_gpu || wanted <= context_.cores) {
      IdleCause cause = lost("allocation", line_.without_core_seconds, "for a core");
      cause.change = fmt::format(
          "{} threads want {} cores, so something else takes them: end it, or bind the ranks to other cores "
          "(top says which)",
          wanted, context_.cores);
      return cause;
    }
    IdleCause cause =
        lost("allocation", line_.without_core_seconds + line_.account[Phase::exposed_communication],
             "for a core, or for ranks that have none");
    const int ranks = std::max(1, context_.cores / context_.threads);
    const bool fewer_threads = context_.threads > 1 && context_.cores >= context_.local_ranks;
    cause.change = fmt::format(
        "{} threads of {} ranks share {} cores: {} here", wanted, context_.local_ranks, context_.cores,
        fewer_threads ? fmt::format("train.threads={}", context_.cores / context_.local_ranks)
                      : fmt::format("start {} rank{}", ranks, ranks == 1 ? "" : "s"));
    // More than all cores never compute.
    const double computing = line_.busy * wanted;
    const double most = computing > 0 ? std::max(1.0, context_.cores / computing) : 1.0;
    cause.samples_per_second = std::min(cause.samples_per_second, line_.samples_per_second * most);
    return cause;
  }

  // What a step costs however small it is.
  IdleCause small_work() const {
    IdleCause cause =
        lost("small_work", line_.account[Phase::idle] + line_.account[Phase::rest], "between its kernels");
    if (context_.on_gpu && !context_.records_steps) {
      set(cause, "train.cuda_graph", "true");
    } else {
      set(cause, "train.batch", std::to_string(2 * context_.batch));
      gain(cause, cause.lost_seconds / 2);
    }
    return cause;
  }

 private:
  IdleCause lost(const char* name, double seconds, const char* what) const {
    IdleCause cause{.cause = name, .lost_seconds = seconds};
    cause.evidence = fmt::format(
        "{} {:.2g} ms a step {} ({:.0f} % of the time)", context_.on_gpu ? "the GPU waits" : "compute waits",
        1e3 * seconds / static_cast<double>(line_.steps), what, 100 * seconds / line_.account.total());
    gain(cause, seconds);
    return cause;
  }
  void set(IdleCause& cause, const char* key, const std::string& value) const {
    cause.key = key;
    cause.value = value;
    cause.change = fmt::format("{}={}", key, value);
  }
  void gain(IdleCause& cause, double seconds) const {
    const double total = line_.account.total();
    cause.samples_per_second = line_.samples_per_second * total / std::max(total - seconds, 0.05 * total);
  }

  const StepLine& line_;
  const IdleContext& context_;
};

}  // namespace

std::optional<IdleCause> find_idle_cause(const StepLine& line, const IdleContext& context,
                                         const std::optional<Advice>& advice) {
  const IdleTime idle(line, context);
  const std::array causes{idle.data(), idle.communication(advice), idle.allocation(), idle.small_work()};
  const IdleCause& most = *std::ranges::max_element(causes, {}, &IdleCause::lost_seconds);
  if (most.lost_seconds < kWorthTelling * line.account.total()) return std::nullopt;
  return most;
}

}  // namespace lockstep
