// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/stragglers.h"

#include <algorithm>
#include <utility>

#include "comm/agreement.h"
#include "core/log.h"
#include "core/system/host_name.h"

namespace lockstep {
namespace {

// A window lasts at least this long, so that short disturbances end within three windows.
constexpr double kWindowSeconds = 0.08;
constexpr double kLongestWindow = 1000;

// The lower one of two middle values.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::vector<Straggler> StragglerScore::window(std::span<const double> seconds, std::int64_t first_step) {
  ranks_.resize(seconds.size());
  const double median = lower_median({seconds.begin(), seconds.end()});
  std::vector<Straggler> found;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    Rank& rank = ranks_[i];
    const bool slow = median < kLeastScore * seconds[i] && seconds[i] - median > kLeastSeconds;
    if (slow && rank.slow == 0) rank.since_step = first_step;
    rank.slow = slow ? rank.slow + 1 : 0;
    rank.fast = slow ? 0 : rank.fast + 1;
    if (rank.fast >= kWindows) rank.reported = false;
    if (rank.slow < kWindows || rank.reported) continue;
    rank.reported = true;
    found.push_back({.rank = static_cast<int>(i),
                     .host = {},
                     .since_step = rank.since_step,
                     .found_step = 0,
                     .seconds = seconds[i],
                     .median_seconds = median});
  }
  return found;
}

StragglerWatch::StragglerWatch(Trainer& trainer, Communicator& host,
                               std::function<void(const Straggler&)> found)
    : trainer_(trainer),
      host_(host),
      found_(std::move(found)),
      hosts_(gather_texts(host, host_name())),
      memory_(host.allocate((static_cast<std::size_t>(host.size()) + 1) * sizeof(std::int32_t))),
      arrived_(Device{}) {
  if (host_.size() > 1) own_.end(trainer_.own_seconds());
}

StragglerWatch::~StragglerWatch() {
  if (!under_way_) return;
  try {
    arrived_.synchronize();
  } catch (const std::exception& error) {
    log::debug("the last exchange of step times failed: {}", error.what());
  }
}

void StragglerWatch::before_step() {
  if (std::exchange(paused_, false) && host_.size() > 1) own_.resume(trainer_.own_seconds());
}

bool StragglerWatch::goes_on() {
  if (host_.size() == 1 || !trainer_.in_lockstep()) return true;
  seconds_.push_back(own_.end(trainer_.own_seconds()));
  if (!trainer_.ranks_met()) return true;
  if (under_way_) receive();
  if (seconds_.size() >= steps_) send();
  return true;
}

void StragglerWatch::send() {
  auto* numbers = reinterpret_cast<std::int32_t*>(memory_.data());
  const auto ranks = static_cast<std::size_t>(host_.size());
  std::fill_n(numbers, ranks + 1, 0);
  const double step = lower_median(seconds_);
  numbers[host_.rank()] = static_cast<std::int32_t>(std::clamp(1e6 * step, 1.0, 2e9));
  if (host_.rank() == 0)
    numbers[ranks] =
        static_cast<std::int32_t>(std::min(kLongestWindow, kWindowSeconds / std::max(step, 1e-6)));
  first_step_ = trainer_.steps() + 1 - static_cast<std::int64_t>(seconds_.size());
  seconds_.clear();
  host_.all_reduce(numbers, ranks + 1, DType::i32, ReduceOp::max);
  host_.stream().record(arrived_);
  under_way_ = true;
}

void StragglerWatch::receive() {
  arrived_.synchronize();
  under_way_ = false;
  const auto* numbers = reinterpret_cast<const std::int32_t*>(memory_.data());
  const auto ranks = static_cast<std::size_t>(host_.size());
  steps_ = std::max(kLeastSteps, static_cast<std::size_t>(numbers[ranks]));
  std::vector<double> seconds;
  for (std::size_t rank = 0; rank < ranks; ++rank) seconds.push_back(1e-6 * numbers[rank]);
  for (Straggler& each : score_.window(seconds, first_step_)) {
    each.host = hosts_[static_cast<std::size_t>(each.rank)];
    each.found_step = trainer_.steps();
    log::shared_warning(
        "rank {} on {} is slow, and all ranks wait for it: since step {} it needs {:.1f} ms a step, the "
        "median rank {:.1f} ms ({:.2f} times as long, without waits); check its device's clock and "
        "temperature, its cores, memory and disk, and other programs on {}",
        each.rank, each.host, each.since_step, 1e3 * each.seconds, 1e3 * each.median_seconds, each.factor(),
        each.host);
    found_(each);
  }
}

}  // namespace lockstep
