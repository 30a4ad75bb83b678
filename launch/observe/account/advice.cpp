// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/advice.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/text/text.h"
#include "launch/train/clock/wait_model.h"

namespace lockstep {
namespace {

constexpr double kWorthAdvice = 0.05;     // share of the step
constexpr double kLeastRemaining = 0.05;  // share of the step: no gain is estimated to leave less

// A change, the estimated time of a step with it (for as many samples as a step has now), and its text.
struct Change {
  std::string key;
  std::string value;
  double step_seconds = 0;
  std::string text;  // "KEY=VALUE", or another action
};

// Time per step that compute waits for each cause, on the rank that waits longest.
struct Causes {
  double late = 0;
  double starved = 0;
  double wire = 0;
};

class Adviser {
 public:
  Adviser(const EpochCommunication& epoch, const AdviceContext& context)
      : epoch_(epoch),
        context_(context),
        steps_(static_cast<double>(epoch.mine.steps)),
        exposed_(std::min(std::ranges::max(epoch.by_rank, {}, &RankCommunication::exposed).exposed / steps_,
                          context.step_seconds)),
        model_(epoch.mine, epoch.bucket_bytes,
               std::ranges::min(epoch.by_rank, {}, &RankCommunication::waited).waited) {}

  std::optional<Advice> advise() const {
    if (exposed_ <= kWorthAdvice * context_.step_seconds) return std::nullopt;
    const Causes causes = this->causes();
    if (causes.late >= std::max(causes.starved, causes.wire)) return late_rank(causes.late);
    if (causes.starved >= causes.wire) return no_core(causes.starved);
    return wire(causes.wire);
  }

 private:
  double ms(double seconds) const { return 1e3 * seconds; }
  double percent(double seconds) const { return 100 * seconds / context_.step_seconds; }

  Causes causes() const {
    Causes causes{.late = std::min(std::max(0.0, epoch_.late() / steps_), exposed_)};
    double starved = epoch_.mine.exposed_starved;
    // Within a node there is no wire: collectives are slow because a thread has no core, and ranks are late
    // in turn because they share cores.
    const double under_way = epoch_.mine.exposed + epoch_.mine.hidden;
    if (context_.nodes == 1 && under_way > 0) {
      starved += std::min(1.0, epoch_.by_rank[0].no_core / under_way) * epoch_.mine.exposed_wire;
      starved += std::max(0.0, epoch_.mine.exposed_late - std::max(0.0, epoch_.late()));
    }
    causes.starved = std::min(starved / steps_, exposed_ - causes.late);
    causes.wire = exposed_ - causes.late - causes.starved;
    return causes;
  }

  Advice said(const char* cause, const std::string& what, const Change& change) const {
    const double step = context_.step_seconds;
    const double faster = step / std::max(change.step_seconds, kLeastRemaining * step);
    Advice advice{.cause = cause, .key = change.key, .value = change.value};
    advice.samples_per_second = context_.samples_per_second * faster;
    advice.without_estimate = fmt::format("{}; {}", what, change.text);
    advice.text = fmt::format("{}: about {} samples/s ({:+.0f} %)", advice.without_estimate,
                              short_number(advice.samples_per_second), 100 * (faster - 1));
    return advice;
  }

  Advice late_rank(double late) const {
    const auto least = std::ranges::min_element(epoch_.by_rank, {}, &RankCommunication::waited);
    if (least->starved / steps_ > late / 2) return no_core(late);
    const auto rank = least - epoch_.by_rank.begin();
    return said(
        "late_rank",
        fmt::format("rank {} is late: other ranks wait {:.1f} ms per step for it ({:.0f} % of the step)",
                    rank, ms(late), percent(late)),
        {.step_seconds = context_.step_seconds - late,
         .text =
             "no setting changes this: find out what slows it (its node, its data, other programs); without "
             "the delay"});
  }

  Advice no_core(double starved) const {
    Change change{
        .step_seconds = context_.step_seconds - starved,
        .text = "run fewer ranks per node (--ranks), or bind each rank to its own cores (mpirun --map-by)"};
    if (context_.threads > 1 && !context_.on_gpu) {  // a GPU's training uses no compute threads
      change.key = "train.threads";
      change.value = std::to_string(context_.threads - 1);
      change.text = fmt::format("train.threads={} leaves one core per rank free", change.value);
    }
    return said(
        "no_core",
        fmt::format(
            "too few cores: compute waits {:.1f} ms per step ({:.0f} % of the step) for communication "
            "threads that have no core, or for ranks that are late in turn",
            ms(starved), percent(starved)),
        change);
  }

  // The choice of buckets with the shortest estimated step.
  Change best_buckets() const {
    Change best{.step_seconds = context_.step_seconds};
    const double now = model_.exposed(epoch_.bucket_bytes);
    for (const BucketChoice& choice : context_.buckets) {
      const double gain = std::min(now - model_.exposed(choice.bucket_bytes), exposed_);
      const double step = context_.step_seconds - gain;
      if (step < best.step_seconds)
        best = {.key = "comm.bucket_mib", .value = choice.value, .step_seconds = step};
    }
    best.text = "comm.bucket_mib=" + best.value;
    return best;
  }

  // NCCL sends 16-bit gradients as fp32 if it adds them in fp32.
  bool halves_are_sent() const {
    const auto ranks = static_cast<std::int64_t>(epoch_.by_rank.size());
    return context_.halves_are_fast && !sums_in_f32(context_.sum_type, DType::bf16, ranks);
  }

  Change half_precision() const {
    const double gain = model_.exposed(epoch_.bucket_bytes) - model_.exposed(epoch_.bucket_bytes, 2);
    return {.key = "train.precision",
            .value = "bf16",
            .step_seconds = context_.step_seconds - gain,
            .text = "train.precision=bf16 halves the bytes sent"};
  }

  // The codec with the shortest estimated step.
  Change codec() const {
    Change best{.step_seconds = context_.step_seconds};
    if (!context_.codecs) return best;
    std::vector<BucketTravel> dense;
    double bytes = 0;
    for (const double each : epoch_.bucket_bytes) dense.push_back({.bytes = each, .round_trips = 1});
    for (const BucketTravel& each : dense) bytes += each.bytes;
    const auto seconds = [&](std::span<const BucketTravel> travel) {
      const OverlappedBackward backward = model_.with(travel);
      return backward.seconds + backward.exposed_seconds;
    };
    const double now = seconds(dense);
    for (const CodecAdvice& each : context_.codecs()) {
      const double gain = std::min(now - seconds(each.travel), exposed_);
      if (context_.step_seconds - gain >= best.step_seconds) continue;
      double sent = 0;
      for (const BucketTravel& bucket : each.travel) sent += bucket.bytes;
      best = {.key = "comm.codec",
              .value = each.codec,
              .step_seconds = context_.step_seconds - gain,
              .text = fmt::format("comm.codec={} sends {:.3g} times fewer bytes", each.codec, bytes / sent)};
    }
    return best;
  }

  // Assumes buckets so small that forward hardly waits for parameters that it does not need yet.
  Change cross_barrier() const {
    const double gain = std::min(context_.forward_seconds, exposed_);
    return {.key = "comm.cross_barrier",
            .value = "true",
            .step_seconds = context_.step_seconds - gain,
            .text =
                "comm.cross_barrier=true also overlaps communication with the next forward pass, with "
                "bitwise identical results"};
  }

  // Twice the samples for the same communication. A rank that computes longer is then late for twice as long.
  Change more_work(double exposed) const {
    // Too few samples: another change must be worth advice.
    if (context_.accumulation > context_.most_accumulation / 2)
      return {.step_seconds = (1 - kWorthAdvice) * context_.step_seconds};
    const std::string value = std::to_string(2 * context_.accumulation);
    return {.key = "train.accumulation",
            .value = value,
            .step_seconds = context_.step_seconds - exposed / 2,
            .text = fmt::format("train.accumulation={} doubles the work per exchange", value)};
  }

  Advice wire(double exposed) const {
    const Change buckets = best_buckets();
    if (context_.step_seconds - buckets.step_seconds >= exposed / 2) return other_buckets(buckets);
    Change best = more_work(exposed);
    if (halves_are_sent() && half_precision().step_seconds < best.step_seconds) best = half_precision();
    if (buckets.step_seconds < best.step_seconds) best = buckets;
    if (const Change change = codec(); change.step_seconds < best.step_seconds) best = change;
    if (const Change change = cross_barrier(); context_.may_cross && change.step_seconds < best.step_seconds)
      best = change;
    if (best.key.empty()) {
      best.step_seconds = context_.step_seconds - exposed;
      best.text =
          "no setting changes this: the dataset is too small for more samples per step; without the waits";
    }
    return said(
        "slow_wire",
        fmt::format("the wire is slow: a step's gradients take {:.1f} ms at {:.1f} MB/s, and the backward "
                    "pass hides {:.1f} ms of communication",
                    ms(epoch_.wire() / steps_), 1e-6 * epoch_.wire_bytes_per_second(),
                    ms(epoch_.hidden() / steps_)),
        best);
  }

  Advice other_buckets(const Change& buckets) const {
    const auto& mine = epoch_.mine.buckets;
    const double last = mine.back().exposed;
    if (last >= epoch_.mine.exposed / 2) {
      return said(
          "last_bucket",
          fmt::format("the last bucket is too large: compute waits {:.1f} ms per step for its {:.1f} MB, "
                      "which no computation hides",
                      ms(last / steps_), 1e-6 * epoch_.bucket_bytes.back()),
          buckets);
    }
    return said(
        "first_bucket",
        fmt::format("buckets are sent late: the first one {:.1f} ms into a backward pass of {:.1f} ms",
                    ms((epoch_.mine.backward - mine.front().lead) / steps_),
                    ms(epoch_.mine.backward / steps_)),
        buckets);
  }

  const EpochCommunication& epoch_;
  const AdviceContext& context_;
  double steps_;
  // Time per step that compute waits on the rank that waits longest. A peer may wait for longer than rank 0's
  // step, and then this is the whole step.
  double exposed_;
  WaitModel model_;
};

}  // namespace

std::optional<Advice> advise(const EpochCommunication& epoch, const AdviceContext& context) {
  if (epoch.by_rank.size() < 2 || epoch.mine.steps == 0 || epoch.bucket_bytes.empty()) return std::nullopt;
  return Adviser(epoch, context).advise();
}

}  // namespace lockstep
