// SPDX-License-Identifier: Apache-2.0
//
// The trace of all ranks in one file, by the clock of rank 0. Ranks of a node share a clock. Between nodes
// the offset is bounded by causality: a collective of all ranks ends on no rank before every rank has begun
// it. It is measured before and after training, and drift between them is taken as linear.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "core/timeline.h"

namespace lockstep {

// How far rank 0's clock is ahead of this rank's, with a bound of error_ns.
struct ClockOffset {
  std::int64_t at_ns = 0;  // time of the measurement by this rank's clock
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;
};

// Collective, over host memory. node: this rank's node; ranks on rank 0's node share its clock. clock: tests
// replace it.
ClockOffset measure_clock(Communicator& host, int node, const std::function<std::int64_t()>& clock = now_ns);

// A clock whose offset changes linearly from `before` to `after`.
TraceClock clock_between(const ClockOffset& before, const ClockOffset& after);

struct JobTrace {
  std::string text;           // Chrome trace JSON
  std::uint64_t dropped = 0;  // spans and flows of all ranks that it lacks: see Timeline
};

// Collective, over host memory. Returns the trace on rank 0 and an empty one on other ranks. A timeline may
// be null. otherData has each rank's clock offset before and after, and the larger of both errors.
JobTrace trace_of_all(Communicator& host, const Timeline* timeline, const ClockOffset& before,
                      const ClockOffset& after);

}  // namespace lockstep
