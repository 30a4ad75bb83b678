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

// A communicator over all ranks, placed on these nodes (one node number for each rank). It has a job separate
// from the world's, which tests can abandon on every rank. Collective.
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
