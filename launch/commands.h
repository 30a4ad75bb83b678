// SPDX-License-Identifier: Apache-2.0
//
// The subcommands. Each returns the exit code or throws. All but info and init are collective over the
// world.
#pragma once

#include "comm/world.h"
#include "launch/command_line.h"

namespace lockstep {

int run_train(const Command& command, World& world);
int run_plan(const Command& command, World& world);
int run_profile(const Command& command, World& world);
// These need no world, and print to standard output.
int run_info();
int run_init(const Command& command);

}  // namespace lockstep
