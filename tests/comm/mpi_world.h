// SPDX-License-Identifier: Apache-2.0
//
// The World that mpi_main.cpp joined, for test cases that run under mpirun. Every rank runs the same cases in
// the same order; an exception in one ends the job, because the others may be waiting.
#pragma once

#include <exception>
#include <span>

#include "comm/world.h"
#include "core/log.h"

namespace lockstep {

World& test_world();

// Collective. Over all ranks, as if they were on these nodes, one number for each rank. Its job is another
// than the world's, and can be abandoned: by every rank.
std::unique_ptr<Communicator> communicator_of_its_own_job(std::span<const int> nodes,
                                                          AllReduceWay way = AllReduceWay::automatic);

// Runs body on this rank; the whole job ends if it throws.
template <typename Body>
void on_every_rank(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
    test_world().abort(1);
  }
}

}  // namespace lockstep
