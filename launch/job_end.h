// SPDX-License-Identifier: Apache-2.0
//
// How a rank in trouble ends. An error all ranks share (Error::agreed) unwinds as usual and is told once. Any
// other may leave peers waiting for this rank, and tearing down what is shared with them would wait for them
// in turn: so it is told by this rank and ends the whole job on the spot.
#pragma once

#include <functional>

#include "comm/world.h"

namespace lockstep {

// Runs `work` and returns what it returns; what it throws leaves as an Error (as_error). Declare what is
// shared with other ranks outside of it.
int run_or_abort(World& world, const std::function<int()>& work);

// Leaves the world with what is the exit code of every rank; ends the job with it where that fails.
void leave_or_abort(World& world, int code);

// "lockstep: message" on standard error.
void print_error(const std::string& message);

// For a rank that fails like rank 0, which tells why, before the two have met in a World: mpirun ends a job
// with the first rank that fails, and this one must not be it. Returns after two seconds, where a launcher
// lets the others live.
void let_rank_0_end_first();

}  // namespace lockstep
