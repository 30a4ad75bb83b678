// SPDX-License-Identifier: Apache-2.0
//
// The subcommands. Each returns the exit code or throws. All but info are collective over the world.
#pragma once

#include "comm/world.h"
#include "launch/command_line.h"

namespace lockstep {

int run_train(const Command& command, World& world);
int run_plan(const Command& command, World& world);
int run_profile(const Command& command, World& world);
// Needs no world: prints to standard output.
int run_info();

}  // namespace lockstep
