// SPDX-License-Identifier: Apache-2.0
//
// How a failed rank ends. An error that all ranks share (Error::agreed) unwinds as usual and is printed once.
// Any other may leave peers waiting for this rank, and destroying what it shares with them would wait in
// turn: so this rank prints the error and aborts the job.
#pragma once

#include <exception>
#include <functional>

#include "comm/world.h"

namespace lockstep {

// Returns work(). Rethrows its exceptions as Error (as_error) if agreed or if this is the only rank;
// otherwise aborts the job. Declare what is shared with other ranks outside of `work`.
int run_or_abort(World& world, const std::function<int()>& work);

// Joins the world, runs work() on every rank like run_or_abort(), and leaves. Prints an agreed error once.
// Returns the exit code; does not throw. A program's main() needs nothing else.
int run_job(const std::function<int(World& world)>& work, const WorldOptions& options = {});

// Leaves the world; every rank has the same exit code. If leaving fails, aborts the job with `code` or, if
// that is exit_code::done, with the failure's code.
void leave_or_abort(World& world, int code);

// "lockstep: message" on standard error.
void print_error(const std::string& message);

// For an exception that every rank throws alike before they have met in a World: rank 0 prints it, and other
// ranks let rank 0 end first. One that is not an Error may be this rank's alone, so every rank prints it.
// Returns the exit code.
int end_before_world(const std::exception& exception);

// For a rank that fails as rank 0 does before they have met in a World. Rank 0 prints the error, but mpirun
// ends the job with the first rank that fails, so other ranks wait here. Returns after two seconds, in case
// the launcher does not end this rank.
void let_rank_0_end_first();

}  // namespace lockstep
