// SPDX-License-Identifier: Apache-2.0
//
// Stragglers: ranks that need longer for a step than the others. All steps take as long as that of the
// slowest rank, so it is their own time that tells (OwnTime, or what a GPU computed): each rank's median over
// a few steps, which all learn between later steps while training goes on. A rank whose score, the median
// rank's time over its own, is under 0.75 in three such windows in a row is told of once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/buffer.h"
#include "core/stream.h"
#include "launch/fit_observer.h"
#include "launch/run_files/report.h"
#include "launch/trainer.h"

namespace lockstep {

// Whom to tell of, window by window.
class StragglerScore {
 public:
  static constexpr double kLeastScore = 0.75;
  static constexpr std::int64_t kWindows = 3;
  // Where a step is shorter by less than this nobody minds.
  static constexpr double kLeastSeconds = 1e-3;

  // seconds: of a step, by rank; first_step: of the window, from 1. Those that are told of from now on, but
  // for their hosts and the step in which it is. One that was as fast as the others for as many windows may
  // be told of again.
  std::vector<Straggler> window(std::span<const double> seconds, std::int64_t first_step);

 private:
  struct Rank {
    std::int64_t slow = 0, fast = 0;  // windows in a row
    std::int64_t since_step = 0;
    bool told = false;
  };
  std::vector<Rank> ranks_;
};

// Finds stragglers during a training and reports them.
class StragglerWatch final : public PassingObserver {
 public:
  // Collective over host memory. All outlive this; the report is rank 0's, or says nothing.
  StragglerWatch(Trainer& trainer, Communicator& host, Report& report, FitObserver& then);
  // Waits for what is under way.
  ~StragglerWatch() override;
  StragglerWatch(const StragglerWatch&) = delete;
  StragglerWatch& operator=(const StragglerWatch&) = delete;

  bool goes_on() override;
  void epoch_over(const std::optional<Evaluation>& evaluation) override;
  void evaluated_within() override;

 private:
  static constexpr std::size_t kLeastSteps = 4;  // of a window

  void send();
  void receive();

  Trainer& trainer_;
  Communicator& host_;
  Report& report_;
  StragglerScore score_;
  std::vector<std::string> hosts_;  // by rank
  OwnSeconds last_;
  std::vector<double> seconds_;  // of the window's steps
  std::size_t steps_ = kLeastSteps;
  Buffer memory_;  // microseconds by rank, then the steps of a window that rank 0 wants
  Event arrived_;
  bool under_way_ = false;
  std::int64_t first_step_ = 1;  // of the window that is under way
};

}  // namespace lockstep
