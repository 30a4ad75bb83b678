// SPDX-License-Identifier: Apache-2.0
//
// The state that a rank publishes to processes of its node while it trains: identity and progress. Plain
// values of a fixed layout in shared memory; a change of the layout changes kRankStateVersion.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "core/timeline.h"

namespace lockstep {

inline constexpr std::uint64_t kRankStateVersion = 3;

// Text of at most N - 1 bytes. Longer text loses its beginning, because the end of a path says more.
template <std::size_t N>
class FixedText {
 public:
  FixedText() = default;
  template <typename Text>
  requires std::convertible_to<Text, std::string_view> FixedText(const Text& given) {  // NOLINT: it is one
    std::string_view text = given;
    if (text.size() >= N) text.remove_prefix(text.size() - (N - 1));
    std::ranges::copy(text, bytes_.begin());
  }
  std::string str() const { return {bytes_.data(), std::ranges::find(bytes_, '\0')}; }

 private:
  std::array<char, N> bytes_ = {};
};

struct RankIdentity {
  // The process. Its number is valid in its PID namespace only, and may be reused after it ends.
  std::int64_t process = 0;
  std::uint64_t process_space = 0;
  std::uint64_t process_start = 0;  // in ticks since boot
  double since = 0;                 // seconds since 1970
  std::int64_t since_ns = 0;        // the same moment, of now_ns()
  std::int64_t rank = 0, ranks = 1;
  std::int64_t local_rank = 0, node = 0;
  std::int64_t threads = 0;  // compute threads; 0: unknown yet
  std::int64_t epochs = 0, global_batch = 0;
  FixedText<128> job;  // unique per job, equal on all its ranks
  FixedText<64> host;
  FixedText<512> run_dir;
  FixedText<64> model;
  FixedText<16> device;  // "cpu", "cuda:0"; empty: not chosen yet
  // The GPU, as reported by CUDA; empty on a CPU.
  FixedText<96> device_name, device_uuid;
  FixedText<32> device_address;
};

enum class Activity : std::int64_t {
  starting,  // data, kernels, everything before the first step
  training,  // steps
  evaluating,
  saving,     // a checkpoint that training waits for
  finishing,  // work after the last step: such as the export
};
inline constexpr std::string_view kActivityWords[] = {"starting", "training", "evaluating", "saving",
                                                      "finishing"};
static_assert(std::size(kActivityWords) == static_cast<std::size_t>(Activity::finishing) + 1);
inline std::string_view name_of(Activity activity) {
  const auto index = static_cast<std::size_t>(activity);
  return index < std::size(kActivityWords) ? kActivityWords[index] : "unknown";
}

// Times are now_ns(), a clock that the processes of a node share.
struct RankProgress {
  Activity activity = Activity::starting;
  std::int64_t activity_ns = 0;  // start of the activity
  std::int64_t epoch = 0;        // from 1; 0: none yet
  std::int64_t epoch_step = 0;   // completed steps of the epoch
  std::int64_t epoch_steps = 0;  // steps per epoch
  std::int64_t step = 0;         // since the start of training
  std::int64_t step_ns = 0;      // end of the last step; 0: none in this process
  std::int64_t own_steps = 0;    // completed steps of this process
  // A window of the last steps, about 1 s: see StepLine.
  std::int64_t window_steps = 0;  // number of steps; 0: none yet
  std::int64_t window_step = 0;   // number of its last step
  std::int64_t window_ns = 0;     // when it ended
  double loss = std::numeric_limits<double>::quiet_NaN();
  double learning_rate = 0;
  double samples_per_second = 0;  // all ranks together
  double busy = 0;
  double peak = std::numeric_limits<double>::quiet_NaN();  // NaN: not measured
  StepAccount account;                                     // sums to the wall time of the window
  StepAccount total;                                       // since the trainer began: see StepTotals::account
  // The last evaluation; NaN: none in this process.
  double test_loss = std::numeric_limits<double>::quiet_NaN();
  double test_accuracy = std::numeric_limits<double>::quiet_NaN();
  // Start of the current series of windows with the device less busy than kHardlyBusy; 0: it is busy.
  std::int64_t idle_since_ns = 0;

  // Mean over the window; 0: none yet.
  double step_seconds() const {
    return account.total() / static_cast<double>(std::max<std::int64_t>(1, window_steps));
  }
  // Since the last step or the start of the activity, whichever is later.
  double quiet_seconds(std::int64_t now_ns) const {
    return std::max(0.0, seconds_between(std::max(step_ns, activity_ns), now_ns));
  }
};

inline constexpr double kHardlyBusy = 0.05;

}  // namespace lockstep
