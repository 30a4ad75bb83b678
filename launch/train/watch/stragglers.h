// SPDX-License-Identifier: Apache-2.0
//
// Stragglers: ranks that need longer for a step than their peers. Every step takes as long as the slowest
// rank's, so ranks are compared by their own time (OwnTime, or a GPU's compute time): each rank's median over
// a window of steps, which ranks exchange during later steps. The score of a rank is the median rank's time
// divided by its own. Below 0.75 in three windows in a row, the rank is reported once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

// A rank that is slower than its peers; see StragglerScore.
struct Straggler {
  int rank = 0;
  std::string host;
  std::int64_t since_step = 0;  // from 1
  std::int64_t found_step = 0;  // in or directly before which it was detected
  double seconds = 0;           // its own time of a step
  double median_seconds = 0;    // of all ranks
  double factor() const { return seconds / median_seconds; }
};

// Decides after each window which ranks are reported.
class StragglerScore {
 public:
  static constexpr double kLeastScore = 0.75;
  static constexpr std::int64_t kWindows = 3;
  // Smaller differences from the median are ignored.
  static constexpr double kLeastSeconds = 1e-3;

  // seconds: per step, by rank; first_step: of the window, from 1. Returns the ranks to report now; `host`
  // and `found_step` are not set. A rank that was not slow for kWindows windows may be reported again.
  std::vector<Straggler> window(std::span<const double> seconds, std::int64_t first_step);

 private:
  struct Rank {
    std::int64_t slow = 0, fast = 0;  // windows in a row
    std::int64_t since_step = 0;
    bool reported = false;
  };
  std::vector<Rank> ranks_;
};

// A rank's own time of each step, from its running sums.
class OwnStepTime {
 public:
  // Work between steps has ended at `now`, and is not part of the next step. The device's sum continues: a
  // GPU's step may end on the host after the step that follows it, or between the two.
  void resume(const OwnSeconds& now) { last_.host = now.host; }
  // Seconds of the step that has ended, on the host or the device, whichever is longer.
  double end(const OwnSeconds& now) {
    const double seconds = std::max(now.host - last_.host, now.device - last_.device);
    last_ = now;
    return seconds;
  }

 private:
  OwnSeconds last_;
};

// Finds stragglers during a training and reports them.
class StragglerWatch final : public TrainingObserver {
 public:
  // Collective over host memory. References outlive this. found: called on every rank for each straggler.
  StragglerWatch(Trainer& trainer, Communicator& host, std::function<void(const Straggler&)> found);
  // Waits for the exchange under way.
  ~StragglerWatch() override;
  StragglerWatch(const StragglerWatch&) = delete;
  StragglerWatch& operator=(const StragglerWatch&) = delete;

  void before_step() override;
  bool goes_on() override;
  void evaluated_within(const EvaluationRecord&) override { paused_ = true; }
  void epoch_over(const EpochRecord&) override { paused_ = true; }

 private:
  static constexpr std::size_t kLeastSteps = 4;  // of a window

  void send();
  void receive();

  Trainer& trainer_;
  Communicator& host_;
  std::function<void(const Straggler&)> found_;
  StragglerScore score_;
  std::vector<std::string> hosts_;  // by rank
  OwnStepTime own_;
  bool paused_ = false;          // other work follows the last step
  std::vector<double> seconds_;  // this rank's, of the window's steps
  std::size_t steps_ = kLeastSteps;
  Buffer memory_;  // microseconds by rank, then the steps that rank 0 wants in a window
  Event arrived_;
  bool under_way_ = false;
  std::int64_t first_step_ = 1;  // of the window whose exchange is under way
};

}  // namespace lockstep
