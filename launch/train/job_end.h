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

// For an exception before the ranks have met in a World. Prints it, on ranks other than 0 after
// let_rank_0_end_first() if it is an Error. Returns the exit code.
int end_before_world(const std::exception& exception);

// For a rank other than 0 that fails before the ranks have met in a World. Usually rank 0 fails alike and
// prints the error, and mpirun then kills this rank within about two seconds. Returns after five seconds:
// then rank 0 has not failed, or the launcher does not end other ranks.
void let_rank_0_end_first();

}  // namespace lockstep
