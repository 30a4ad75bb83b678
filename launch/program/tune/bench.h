// SPDX-License-Identifier: Apache-2.0
//
// TuneBench: measures settings against the given configuration, in this process, by training steps on the
// user's data. The trained parameters are discarded. The configuration stays built; a candidate is built
// beside it for one visit, and the two run in turns. Where memory has room for only one, each is built for
// its turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/program/setup/bench.h"
#include "launch/program/tune/search.h"

namespace lockstep {

class TuneBench {
 public:
  // Collective, as all members that measure. Ranks agree over `control`. World, control and registry outlive
  // this.
  TuneBench(World& world, Communicator& control, const Config& as_configured, const Registry& registry);

  // Facts of the given configuration.
  struct Facts {
    Device device;
    int threads = 1;
    std::int64_t global_batch = 1;
    std::vector<Parameter> parameters;  // names, layouts and offsets; their memory may be freed
    std::string backend;                // Backend::describe
  };
  const Facts& facts() const { return facts_; }

  // Measures a block of the given configuration, long enough to estimate the time of a step.
  // steps_at_most: of the block; at least 2 are allowed.
  TuneVisit calibrate(std::int64_t steps_at_most);
  // Sets the length of later turns. steps_at_most: of a block.
  void set_turns(double step_seconds, std::int64_t steps_at_most);
  std::int64_t block_steps() const { return block_steps_; }
  std::int64_t steps_of_pair() const { return 2 * (block_steps_ + settling_steps_); }

  // Measures pairs of the given configuration and the candidate. Equal on every rank, except `seconds`. If
  // all ranks agree that the candidate is invalid or lacks memory, sets `problem`; passes on other errors.
  // tell_turn: called after each turn with the seconds, on this rank, and the steps of the visit so far.
  TuneVisit visit(const Config& candidate, int pairs,
                  const std::function<void(double seconds, double steps)>& tell_turn = {});

 private:
  void warm_up(MeasuredTraining& built, std::int64_t steps);
  // of: the built training; null: builds one for this turn.
  BenchBlock take_turn(MeasuredTraining* of, const Config& config);
  BenchBlock block(MeasuredTraining& built, std::int64_t settling, std::int64_t steps);

  Bench bench_;  // its reference is the given configuration; it has none where only one fits in memory
  Config as_configured_;
  Facts facts_;
  std::int64_t steps_done_ = 0;
  std::int64_t warm_up_steps_ = 1;
  std::int64_t settling_steps_ = 0;
  std::int64_t block_steps_ = 1;
};

}  // namespace lockstep
