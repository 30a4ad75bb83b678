// SPDX-License-Identifier: Apache-2.0
//
// The facts of a training's start: program, machine and libraries.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/program/setup/training_setup.h"

namespace lockstep {

// The object in run.json: lockstep (version), command, started (local time, ISO 8601), ranks, nodes, host,
// processor, cores, device, threads (of a rank), backend, libraries {mpi, cuda, nccl}, parameters,
// planned_bytes {device {..}, host {..}} of a rank (launch/program/setup/rank_memory.h), global_batch,
// dataset {training, test, classes, class_names}, and device_memory on a GPU.
std::string run_facts(const World& world, TrainingSetup& training, const Communicator& communicator);

}  // namespace lockstep
