// SPDX-License-Identifier: Apache-2.0
//
// Stragglers: ranks that need longer for a step than others. Every step takes as long as the slowest rank's,
// so ranks are compared by their own time (OwnTime, or a GPU's compute time): each rank's median over a
// window of steps, which ranks exchange during later steps. The score of a rank is the median rank's time
// divided by its own. Below 0.75 in three windows in a row, the rank is reported once.
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
    bool told = false;
  };
  std::vector<Rank> ranks_;
};

// Finds stragglers during a training and reports them.
class StragglerWatch final : public PassingObserver {
 public:
  // Collective over host memory. All outlive this. Only rank 0's report writes.
  StragglerWatch(Trainer& trainer, Communicator& host, Report& report, FitObserver& then);
  // Waits for the exchange under way.
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
  std::vector<double> seconds_;  // this rank's, of the window's steps
  std::size_t steps_ = kLeastSteps;
  Buffer memory_;  // microseconds by rank, then the steps that rank 0 wants in a window
  Event arrived_;
  bool under_way_ = false;
  std::int64_t first_step_ = 1;  // of the window whose exchange is under way
};

}  // namespace lockstep
