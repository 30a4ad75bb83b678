// SPDX-License-Identifier: Apache-2.0
//
// What a run was, beside what it came to: config.toml, the whole configuration, with which the same command
// trains the same; and run.json, the program, the machine and the libraries. Both of the last start: what an
// earlier one left is renamed where it said something else (name_of_earlier), but for the time and command.
#pragma once

#include <string>

#include "comm/world.h"
#include "launch/config/config.h"
#include "launch/training.h"

namespace lockstep {

// The object in run.json: lockstep (version), command, started (local time, ISO 8601), ranks, nodes, host,
// processor, cores, device, threads (of a rank), backend, libraries {mpi, cuda, nccl}, parameters,
// planned_bytes {device {..}, host {..}} of a rank (launch/rank_memory.h), global_batch, dataset {training,
// test, classes, class_names}.
std::string run_facts(const World& world, Training& training, const Communicator& communicator);

// By rank 0. Without room, or rights, the run goes on without them: one warning.
void write_run_record(const Config& config, const std::string& config_text, const std::string& facts);

}  // namespace lockstep
