// SPDX-License-Identifier: Apache-2.0
//
// TuneBench: measures settings against the configuration as it is, in this process, by training steps on the
// user's data; what they train is thrown away. The configuration stays built, a candidate is built beside it
// for one visit, and the two take turns. Where memory holds one of them only, each is built anew for its
// turn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/bench_training.h"
#include "launch/tune/search.h"

namespace lockstep {

class TuneBench {
 public:
  // Collective, as everything here. Ranks agree over `control`. All must outlive this.
  TuneBench(World& world, Communicator& control, const Config& as_configured, const Registry& registry);

  // What there is to know of the configuration as it is.
  struct Facts {
    Device device;
    int threads = 1;
    std::int64_t global_batch = 1;
    std::vector<Parameter> parameters;  // names, layouts and offsets; their memory may be gone
    std::string backend;                // Backend::describe
  };
  const Facts& facts() const { return facts_; }

  // A block of the configuration as it is, of steps enough to tell how long one takes, if so many may be.
  TuneVisit calibrate(std::int64_t steps_at_most);
  // How long turns are from here on. steps_at_most: of a block.
  void set_turns(double step_seconds, std::int64_t steps_at_most);
  std::int64_t block_steps() const { return block_steps_; }
  std::int64_t steps_of_pair() const { return 2 * (block_steps_ + settling_steps_); }

  // Pairs of the configuration as it is and another one. The same on every rank, but `seconds`. A
  // configuration that cannot be built, as all ranks find, is the visit's problem; other errors pass.
  TuneVisit visit(const Config& candidate, int pairs);
  // Called behind each turn of a visit, with what the visit has taken so far: seconds of this rank, and
  // steps.
  using TurnTeller = std::function<void(double seconds, double steps)>;
  void tell_turns(TurnTeller teller) { turn_teller_ = std::move(teller); }

 private:
  std::unique_ptr<BenchTraining> build(const Config& config);
  void warm_up(BenchTraining& built, std::int64_t steps);
  // of: what is built; null: built for this alone.
  TuneBlock take_turn(BenchTraining* of, const Config& config);
  TuneBlock block(BenchTraining& built, std::int64_t settling, std::int64_t steps);
  void measure(const Config& candidate, int pairs, TuneVisit& visit,
               const std::function<void()>& behind_turn);
  // Builds the candidate beside the configuration; null where there is no room for two.
  std::unique_ptr<BenchTraining> build_beside(const Config& candidate);

  World& world_;
  Communicator& control_;
  Config as_configured_;
  Registry registry_;
  Datasets datasets_;                       // which all read
  std::unique_ptr<BenchTraining> default_;  // null: one at a time
  Facts facts_;
  TurnTeller turn_teller_;  // null: nobody tells
  std::int64_t steps_done_ = 0;
  std::int64_t warm_up_steps_ = 1;
  std::int64_t settling_steps_ = 0;
  std::int64_t block_steps_ = 1;
};

}  // namespace lockstep
