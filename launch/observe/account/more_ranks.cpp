// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/more_ranks.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/text/text.h"
#include "launch/train/clock/wait_model.h"

namespace lockstep {
namespace {

constexpr double kBusy = 0.9;

// A step of the epoch (now), and one of the same micro-batches on twice as many ranks (then).
struct LongerStep {
  double now = 0, then = 0, exposed = 0;  // seconds; exposed: of then
};

// With n ranks, a rank sends (n - 1) / n of each bucket twice; with 2n ranks, (2n - 1) / (2n - 2) times as
// much.
LongerStep longer_step(const TrainedEpoch& epoch, int ranks) {
  const EpochCommunication& communication = *epoch.communication;
  const double least_wait = std::ranges::min(communication.by_rank, {}, &RankCommunication::waited).waited;
  const WaitModel model(communication.mine, communication.bucket_bytes, least_wait);
  const double speed = (2.0 * ranks - 2) / (2.0 * ranks - 1);
  LongerStep step{.now = epoch.seconds / epoch.steps};
  const double more = std::max(
      0.0, model.exposed(communication.bucket_bytes, speed) - model.exposed(communication.bucket_bytes));
  step.then = step.now + more;
  step.exposed = communication.mine.exposed / epoch.steps + more;
  return step;
}

std::string place_of(const RanksNow& now) {
  if (now.on_gpu) return "on twice as many GPUs";
  return now.cores >= 2 * now.local_ranks * now.threads ? "on the free cores of this node"
                                                        : "on as many additional cores of other nodes";
}

}  // namespace

std::optional<MoreRanks> more_ranks(const TrainedEpoch& epoch, const RanksNow& now) {
  if (epoch.busy < kBusy || epoch.steps == 0) return std::nullopt;
  MoreRanks more{.ranks = 2 * now.ranks, .samples_per_second = 2 * epoch.samples_per_second};
  const std::string begin = fmt::format("busy {:.0f} %: settings can gain little more; {} ranks {}",
                                        100 * epoch.busy, more.ranks, place_of(now));
  if (now.ranks == 1) {
    const double backward = epoch.backward / epoch.steps / static_cast<double>(epoch.accumulation);
    more.text = fmt::format(
        "{}: up to {} samples/s (+100 %) if the {} MB of a step's gradients are exchanged at {} "
        "MB/s or more, during a backward pass of {} ms",
        begin, short_number(more.samples_per_second), short_number(1e-6 * now.gradient_bytes),
        short_number(1e-6 * now.gradient_bytes / backward), short_number(1e3 * backward));
    return more;
  }
  if (epoch.communication == nullptr || epoch.communication->mine.steps == 0 ||
      epoch.communication->bucket_bytes.empty())
    return std::nullopt;
  const LongerStep step = longer_step(epoch, now.ranks);
  more.samples_per_second *= step.now / step.then;
  more.text = fmt::format(
      "{}: about {} samples/s ({:+.0f} %) with {} ms of exposed communication in a step of {} "
      "ms, if their wire also carries {} MB/s",
      begin, short_number(more.samples_per_second),
      100 * (more.samples_per_second / epoch.samples_per_second - 1), short_number(1e3 * step.exposed),
      short_number(1e3 * step.then), short_number(1e-6 * epoch.communication->wire_bytes_per_second()));
  return more;
}

}  // namespace lockstep
