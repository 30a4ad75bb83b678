// SPDX-License-Identifier: Apache-2.0
//
// SharedSteps: ranks that do not wait for each other take the steps of an epoch one by one from a common
// counter, so a fast rank takes more of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/in_process/neighbour_slots.h"

namespace lockstep {

class SharedSteps {
 public:
  // All outlive this. slots: contains the counter.
  SharedSteps(NeighbourSlots& slots, Communicator& communicator);

  // Collective, when all ranks are at step `first` of an epoch. They share `each` times their number of
  // steps.
  void begin_epoch(std::int64_t first, std::int64_t each);
  // Takes a step and returns its number in the epoch: `first` plus the steps that all ranks had taken before,
  // divided by the number of ranks. So the schedule follows the samples trained on, not the fastest rank.
  // nullopt: the steps of the epoch are all taken, or given up.
  std::optional<std::int64_t> take();
  // Not collective. No rank begins another step of this epoch.
  void give_up() { slots_.give_up_steps(end_); }
  // Collective; waits until no rank takes steps. Ends the epoch and returns each rank's steps in it. A rank
  // may destroy this afterwards.
  std::vector<std::int64_t> end_epoch();

 private:
  NeighbourSlots& slots_;
  Communicator& communicator_;
  std::int64_t first_ = 0;  // see begin_epoch()
  std::int64_t begin_ = 0;  // the epoch's range, in steps of all ranks since the start
  std::int64_t end_ = 0;
  std::vector<std::int64_t> before_;  // steps of each rank before this epoch
};

}  // namespace lockstep
