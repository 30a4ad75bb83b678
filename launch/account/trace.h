// SPDX-License-Identifier: Apache-2.0
//
// The trace of all ranks in one file, by one clock: rank 0's. Ranks of a node share a clock. Between nodes
// the offset is bounded by causality: a collective of all ranks ends on none before each of them has begun
// it. It is measured before and after training, and what a clock drifts meanwhile is spread evenly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "core/timeline.h"
#include "launch/account/ledger.h"

namespace lockstep {

// What rank 0's clock is ahead of this rank's, for certain to within error_ns.
struct ClockOffset {
  std::int64_t at_ns = 0;  // of this rank's clock
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;
};

// The arrows of the step that ended last.
void record_flows(const Ledger& ledger, Timeline& timeline);

// Collective, over host memory. node: that this rank is on; ranks of rank 0's node have its clock. `clock` is
// for tests.
ClockOffset measure_clock(Communicator& host, int node, const std::function<std::int64_t()>& clock = now_ns);

// A clock that had one offset at one time, and another one at another.
TraceClock clock_between(const ClockOffset& before, const ClockOffset& after);

// Collective, over host memory. The trace, on rank 0; empty on the others. A timeline may be null. Its
// otherData has for each rank the offset of its clock before and after, and the larger error of both.
std::string trace_of_all(Communicator& host, const Timeline* timeline, const ClockOffset& before,
                         const ClockOffset& after);

}  // namespace lockstep
