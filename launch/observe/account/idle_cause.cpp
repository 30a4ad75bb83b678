// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/idle_cause.h"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "core/text/text.h"
#include "core/text/units.h"

namespace lockstep {
namespace {

constexpr double kWorthTelling = 0.05;  // share of the time
// Below this mean time a kernel mostly starts and ends, or fills only a part of the device. At batch 1 a
// resnet18 takes 24 us per kernel on an H200, with 41 % of the multiprocessors active, and cnn 40 us on two
// cores, of which matrix products need 1.
constexpr double kShortKernelSeconds = 30e-6;
constexpr double kShortKernelSecondsOnCpu = 100e-6;

constexpr const char* kNoSetting = "no setting changes this: ";
constexpr const char* kTooFewSamples = "the dataset is too small for more samples per step";
constexpr std::int64_t kLargestFactor = 64;

class IdleTime {
 public:
  IdleTime(const StepLine& line, const IdleContext& context) : line_(line), context_(context) {}

  IdleCause data() const {
    IdleCause cause = lost("data", line_.account[Phase::data_wait] + taken_by_loaders(),
                           taken_by_loaders() > line_.account[Phase::data_wait]
                               ? "for cores that loaders use, or for ranks that wait for such cores"
                               : "for data");
    const bool streams = !context_.preloads;
    if (streams && context_.may_keep) {
      set(cause, "data.loader", "preload");
    } else if (streams && context_.decodes && !context_.draws) {
      cause.change =
          "images are decoded in every epoch: lockstep pack writes records, which need no decoding";
    } else if (context_.loader_threads > 0) {
      set(cause, "data.loader_threads", "0");
    } else if (streams && context_.reads_files && !context_.decodes &&
               taken_by_loaders() <= line_.account[Phase::data_wait]) {
      cause.change = fmt::format("{}copy the samples to a faster disk of this node", kNoSetting);
    } else if (context_.threads > 1 && !context_.on_gpu) {
      set(cause, "train.threads", std::to_string(context_.threads - 1));
      cause.change = "the loader has too few cores: set " + cause.change;
    } else if (context_.local_ranks > 1) {
      cause.change = "the loader has too few cores: start fewer ranks on this node (--ranks)";
    } else {
      cause.change =
          fmt::format("{}the loader has too few cores: use more cores, or smaller images", kNoSetting);
    }
    return cause;
  }

  IdleCause communication(const std::optional<Advice>& advice) const {
    // A single rank waits only for its own communication thread.
    const double exposed = context_.ranks > 1 ? line_.account[Phase::exposed_communication] : 0;
    IdleCause cause = lost("communication", exposed, "for other ranks");
    if (advice) {
      cause.key = advice->key;
      cause.value = advice->value;
      cause.change = advice->without_estimate;
      const double rate = std::max(advice->samples_per_second, line_.samples_per_second);
      gain(cause, line_.account.total() * (1 - line_.samples_per_second / rate));
    } else {
      accumulate(cause, cause.lost_seconds);
    }
    return cause;
  }

  // With more threads than cores, a rank that waits for a peer waits for the peer's core.
  IdleCause allocation() const {
    const int wanted = context_.local_ranks * context_.threads;
    const bool bound = context_.machine_cores > context_.cores && context_.cores < wanted;
    if (!context_.on_gpu && bound) {
      IdleCause cause = lost_to_cores();
      cause.change = fmt::format(
          "the ranks may use {} of {} cores: run mpirun --bind-to none, request more cores from the job "
          "scheduler, or raise the CPU quota (docker run --cpus)",
          context_.cores, context_.machine_cores);
      gain_at_most(cause, std::min(wanted, context_.machine_cores));
      return cause;
    }
    if (context_.on_gpu || wanted <= context_.cores) {
      const bool alone = context_.ranks == 1 && !context_.on_gpu;
      const double waited = alone ? waited_for_cores() : line_.without_core_seconds;
      IdleCause cause = lost("allocation", std::max(0.0, waited - taken_by_loaders()), "for a core");
      cause.change = fmt::format(
          "{}{} may use {}, and other programs use these cores: end them (top lists them), or bind the ranks "
          "to other cores",
          kNoSetting, counted(wanted, "thread"), counted(context_.cores, "core"));
      return cause;
    }
    IdleCause cause = lost_to_cores();
    const int ranks = std::max(1, context_.cores / context_.threads);
    const bool one_node = context_.ranks <= context_.local_ranks;
    const std::string flag = one_node ? fmt::format("--ranks {}", ranks)
                                      : fmt::format("mpirun --bind-to none --map-by ppr:{}:node", ranks);
    std::string action =
        fmt::format("start {} on {} node ({})", counted(ranks, "rank"), one_node ? "this" : "each", flag);
    if (context_.threads > 1 && context_.cores >= context_.local_ranks) {
      set(cause, "train.threads", std::to_string(context_.cores / context_.local_ranks));
      action = "set " + cause.change;
    }
    cause.change = fmt::format("{} threads of {} share {}: {}", wanted, counted(context_.local_ranks, "rank"),
                               counted(context_.cores, "core"), action);
    gain_at_most(cause, context_.cores);
    return cause;
  }

  // The fixed cost of a step, which does not depend on the batch size.
  IdleCause small_work() const {
    const double between = line_.account[Phase::idle] + line_.account[Phase::rest] - line_.telling_seconds -
                           line_.saving_seconds;
    IdleCause cause = lost("small_work", std::max(0.0, between), "between kernels");
    if (context_.on_gpu && !context_.records_steps) {
      set(cause, "train.cuda_graph", "true");
      if (context_.times_collectives) cause.change += " with comm.kernel_times=false";
    }
    return cause;  // without a change: larger_batch() adds it
  }

  // Evaluations, checkpoints and writing of reports, during which the device does not train.
  IdleCause monitoring() const {
    const double evaluating = line_.evaluation_seconds, telling = line_.telling_seconds,
                 saving = line_.saving_seconds;
    const bool evaluates = evaluating > std::max(telling, saving), saves = !evaluates && saving > telling;
    IdleCause cause = lost("monitoring", evaluating + telling + saving,
                           evaluates ? "for evaluations within the epoch"
                           : saves   ? "for checkpoints"
                                     : "for writing steps.jsonl and TensorBoard events");
    const std::int64_t factor = factor_for(cause.lost_seconds);
    if (evaluates) {
      set(cause, "run.metrics_every", std::to_string(factor * context_.metrics_every));
    } else if (!saves) {
      if (context_.log_every >= context_.epoch_steps) return no_lines(cause);
      set(cause, "run.log_every", std::to_string(factor * context_.log_every));
    } else if (saves_by_steps()) {
      set(cause, "run.checkpoint_every", std::to_string(factor * context_.checkpoint_every));
    } else if (context_.checkpoint_minutes > 0) {
      set(cause, "run.checkpoint_minutes",
          fmt::format("{:g}", static_cast<double>(factor) * context_.checkpoint_minutes));
    } else {
      cause.change = fmt::format("{}request fewer checkpoints (SIGUSR2)", kNoSetting);
    }
    gain_of(cause, factor);
    return cause;
  }

  // Work that does not fill the device, and the part of a step that costs the same for any batch.
  IdleCause too_small(const ComputeRoof& roof) const {
    const double optimizer = line_.account[Phase::optimizer];
    const double weights = std::min(passes() * roof.weights, passes_seconds());  // a cache may hold them
    const double around =
        short_kernels(roof) ? std::max(0.0, passes_seconds() - passes() * roof.seconds()) : 0;
    IdleCause cause{.cause = "small_work", .lost_seconds = optimizer + weights + around};
    cause.evidence = fmt::format(
        "{} ms of a step of {} ms do not depend on the batch size (optimizer {} ms, reading weights {} ms, "
        "overhead of kernels of {:.0f} us each {} ms)",
        ms(cause.lost_seconds), ms(total()), ms(optimizer), ms(weights),
        1e6 * passes_seconds() / passes() / roof.kernels, ms(around));
    return cause;  // without a change, as small_work()
  }

  // A network bound by memory, or with sizes that leave kernels half empty.
  IdleCause architecture(const ComputeRoof& roof) const {
    const double memory = passes() * (roof.memory - roof.weights);
    const double slow = short_kernels(roof) ? 0 : std::max(0.0, passes_seconds() - passes() * roof.seconds());
    IdleCause cause{.cause = "architecture", .lost_seconds = memory + slow};
    const std::string far = fmt::format("at the peak rate, matrix products take {} ms of a step of {} ms",
                                        ms(passes() * roof.products), ms(total()));
    if (memory >= slow) {
      cause.evidence = fmt::format("{}, but memory bandwidth limits {}: at least {} ms more", far,
                                   fmt::join(roof.bound_by_memory, " and "), ms(memory));
      if (context_.halves_are_fast) {
        set(cause, "train.precision", "bf16");
        gain(cause, memory / 2);
      } else {
        cause.change = fmt::format(
            "{}use wider layers, or fewer of these, for more operations per byte (lockstep profile lists "
            "each layer)",
            kNoSetting);
      }
    } else if (roof.unfilled >= kWorthTelling) {
      cause.evidence = fmt::format(
          "{}, and channels leave {:.0f} % of vector elements unused, most of them in {} "
          "({} channels)",
          far, 100 * roof.unfilled, roof.unfilled_layer, roof.unfilled_channels);
      const std::optional<WidthSetting> width =
          context_.width ? context_.width(roof.unfilled_layer, roof.unfilled_channels) : std::nullopt;
      if (width) {
        const std::int64_t vectors = width->value / roof.channels + 1;
        set(cause, width->key, std::to_string(vectors * roof.channels));
        gain(cause, roof.unfilled * passes_seconds());
      } else {
        cause.change = fmt::format("{}use channels in multiples of {}, which fill the vectors", kNoSetting,
                                   roof.channels);
      }
    } else {
      cause.evidence = fmt::format("{}, and memory bandwidth does not explain the remaining time", far);
      if (context_.may_time_kernels) {
        set(cause, "kernels.choose", "time");
      } else {
        cause.change = fmt::format("{}lockstep profile lists the slow kernels", kNoSetting);
      }
    }
    return cause;
  }

 private:
  // Milliseconds of each step, as text.
  std::string ms(double seconds) const { return short_number(1e3 * seconds / static_cast<double>(steps())); }
  double total() const { return line_.account.total() + line_.evaluation_seconds; }
  // On a ring rank 0 may take no step between two lines.
  std::int64_t steps() const { return std::max<std::int64_t>(1, line_.steps); }
  // Micro-batches, and the time of their forward and backward passes without waits for a core.
  double passes() const { return static_cast<double>(steps() * context_.accumulation); }
  double passes_seconds() const {
    return std::max(
        0.0, line_.account[Phase::forward] + line_.account[Phase::backward] - line_.without_core_seconds);
  }
  bool short_kernels(const ComputeRoof& roof) const {
    const double seconds = context_.on_gpu ? kShortKernelSeconds : kShortKernelSecondsOnCpu;
    return passes_seconds() < seconds * passes() * roof.kernels;
  }

  // True if checkpoints are due by steps before they are due by time.
  bool saves_by_steps() const {
    if (context_.checkpoint_every == 0 || context_.checkpoint_minutes <= 0)
      return context_.checkpoint_every > 0;
    const double interval =
        static_cast<double>(context_.checkpoint_every) * total() / static_cast<double>(steps());
    return interval <= 60 * context_.checkpoint_minutes;
  }
  // For epochs that have one line each.
  IdleCause no_lines(IdleCause cause) const {
    set(cause, "run.log_every", "0");
    cause.change += fmt::format(", because each epoch of {} ends a line; it also disables these warnings",
                                counted(context_.epoch_steps, "step"));
    gain(cause, line_.telling_seconds);
    return cause;
  }

  double waited_for_cores() const {
    return line_.without_core_seconds + line_.account[Phase::exposed_communication];
  }
  // If compute threads use all cores, loaders take core time from them: a rank waits for a core, and its
  // peers wait for that rank.
  double taken_by_loaders() const {
    if (context_.on_gpu || context_.local_ranks * context_.threads < context_.cores) return 0;
    return std::min(line_.loader_seconds / context_.threads, waited_for_cores());
  }
  IdleCause lost_to_cores() const {
    return lost("allocation", waited_for_cores() - taken_by_loaders(),
                "for a core, or for ranks without a core");
  }
  // Limits the gain: compute never uses more than all cores.
  void gain_at_most(IdleCause& cause, int cores) const {
    const double computing = line_.busy * context_.local_ranks * context_.threads;
    const double most = computing > 0 ? std::max(1.0, cores / computing) : 1.0;
    cause.samples_per_second = std::min(cause.samples_per_second, overall_rate(line_) * most);
  }
  // The smallest power of two, from 2, by which a cost per step must be divided to be less than a twentieth
  // of the time.
  std::int64_t factor_for(double cost) const {
    const double rest = std::max(0.0, total() - cost);
    std::int64_t factor = 2;
    while (factor < kLargestFactor && cost > kWorthTelling * (cost + static_cast<double>(factor) * rest))
      factor *= 2;
    return factor;
  }
  // The same work pays the cost once in `factor` times as many samples.
  void gain_of(IdleCause& cause, std::int64_t factor) const {
    gain(cause, cause.lost_seconds * (1 - 1 / static_cast<double>(factor)));
  }
  // The largest power of two, up to this factor, for which the dataset has samples; below 2: none.
  std::int64_t factor_with_samples(std::int64_t factor) const {
    while (factor > 1 && context_.batch > context_.most_batch / factor) factor /= 2;
    return factor;
  }
  void cannot(IdleCause& cause, const char* why) const {
    cause.change = std::string(kNoSetting) + why;
    cause.samples_per_second = 0;
  }
  // cost: what a step pays once for all its micro-batches.
  void accumulate(IdleCause& cause, double cost) const {
    const std::int64_t factor = factor_with_samples(factor_for(cost));
    if (factor < 2) return cannot(cause, kTooFewSamples);
    set(cause, "train.accumulation", std::to_string(factor * context_.accumulation));
    gain(cause, cost * (1 - 1 / static_cast<double>(factor)));
  }

 public:
  // Proposes a larger batch, which divides a step's fixed cost per sample. If not even twice the batch fits
  // in memory, sets the cause to "memory". per_step: the part of the cost that accumulation also divides.
  void larger_batch(IdleCause& cause, double per_step) const {
    std::int64_t factor = factor_with_samples(factor_for(cause.lost_seconds));
    if (factor < 2) return cannot(cause, kTooFewSamples);
    BatchRoom room;
    while (context_.room && !(room = context_.room(factor * context_.batch)).fits && factor > 2) factor /= 2;
    const std::int64_t batch = factor * context_.batch;
    gain_of(cause, factor);
    if (room.fits) return set(cause, "train.batch", std::to_string(batch));
    cause.cause = "memory";
    cause.evidence += fmt::format(", and a batch of {} needs {} of memory, but only {} are available", batch,
                                  in_units(room.needed), in_units(room.available));
    if (room.remedies.empty()) {
      if (per_step < kWorthTelling * total()) return cannot(cause, "no larger batch fits in memory");
      return accumulate(cause, per_step);
    }
    const std::string& first = room.remedies.front();
    const std::size_t equals = first.find('=');
    set(cause, first.substr(0, equals), first.substr(equals + 1));
    cause.change = fmt::format("{}, and then train.batch={}", fmt::join(room.remedies, " or "), batch);
  }

 private:
  IdleCause lost(const char* name, double seconds, const char* what) const {
    IdleCause cause{.cause = name, .lost_seconds = seconds};
    cause.evidence = fmt::format("{} {} ms per step {} ({:.0f} % of the time)",
                                 context_.on_gpu ? "the GPU waits" : "compute waits", ms(seconds), what,
                                 100 * seconds / total());
    gain(cause, seconds);
    return cause;
  }
  void set(IdleCause& cause, const std::string& key, const std::string& value) const {
    cause.key = key;
    cause.value = value;
    cause.change = fmt::format("{}={}", key, value);
  }
  void gain(IdleCause& cause, double seconds) const {
    cause.samples_per_second = overall_rate(line_) * total() / std::max(total() - seconds, 0.05 * total());
  }

  const StepLine& line_;
  const IdleContext& context_;
};

}  // namespace

std::optional<IdleCause> find_idle_cause(const StepLine& line, const IdleContext& context,
                                         const std::optional<Advice>& advice) {
  const IdleTime idle(line, context);
  const std::array causes{idle.data(), idle.communication(advice), idle.allocation(), idle.small_work(),
                          idle.monitoring()};
  IdleCause most = *std::ranges::max_element(causes, {}, &IdleCause::lost_seconds);
  if (most.lost_seconds < kWorthTelling * line.account.total()) return std::nullopt;
  if (most.cause == "small_work" && most.key.empty()) idle.larger_batch(most, most.lost_seconds);
  return most;
}

std::optional<IdleCause> find_slow_cause(const StepLine& line, const IdleContext& context) {
  const std::optional<ComputeRoof> roof = context.roof ? context.roof() : std::nullopt;
  if (!roof || roof->kernels == 0) return std::nullopt;
  const IdleTime slow(line, context);
  IdleCause small = slow.too_small(*roof), network = slow.architecture(*roof);
  if (small.lost_seconds < network.lost_seconds) return network;
  slow.larger_batch(small, line.account[Phase::optimizer]);
  return small;
}

IdleCause cause_of(const SlowedDevice& device, const StepLine& line) {
  return {.cause = "allocation",
          .lost_seconds = (1 - device.share_of_clock) * line.account.total(),
          .evidence = fmt::format("the clock of {} is limited to {:.0f} % of its maximum ({})", device.name,
                                  100 * device.share_of_clock, device.why),
          .change = fmt::format("{}check its cooling and its power limit (nvidia-smi -q -d PERFORMANCE)",
                                kNoSetting),
          .samples_per_second = overall_rate(line) / device.share_of_clock};
}

}  // namespace lockstep
