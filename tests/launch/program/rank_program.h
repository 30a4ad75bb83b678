// SPDX-License-Identifier: Apache-2.0
//
// The main() of a test program that mpirun starts as one of several ranks.
#pragma once

#include "comm/world.h"

namespace lockstep {

// work returns the exit code (run_or_abort).
inline int run_rank(int (*work)(World& world)) {
  World world = World::join();
  const int code = work(world);
  world.leave();
  return code;
}

}  // namespace lockstep
