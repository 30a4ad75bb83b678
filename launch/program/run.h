// SPDX-License-Identifier: Apache-2.0
//
// The whole program: main() calls run(); custom programs pass their own registry.
#pragma once

#include "launch/program/registry.h"

namespace lockstep {

// Runs the command in argv on this rank and returns the exit code. Prints errors as `lockstep` does, and does
// not throw.
int run(int argc, char** argv, const Registry& registry = {});

}  // namespace lockstep
