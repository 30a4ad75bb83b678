// SPDX-License-Identifier: Apache-2.0
//
// The whole program: its main is a call of this, and so is that of a program with things of its own.
#pragma once

#include "launch/registry.h"

namespace lockstep {

// Runs the command that argv names, on this rank, and returns the exit code. Nothing is thrown: errors are
// told as `lockstep` tells them.
int run(int argc, char** argv, const Registry& registry = {});

}  // namespace lockstep
