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

// "lockstep: message" on standard error.
void print_error(const std::string& message);

}  // namespace lockstep
