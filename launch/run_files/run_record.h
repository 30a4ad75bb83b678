// SPDX-License-Identifier: Apache-2.0
//
// The record of a run's last start: config.toml, the whole configuration, with which the same command repeats
// the training; and run.json, the program, the machine and the libraries. A file of an earlier start is
// renamed (name_of_earlier) where it differs in more than started, command and device_memory.
#pragma once

#include <string>

#include "comm/world.h"
#include "launch/config/config.h"
#include "launch/training.h"

namespace lockstep {

// The object in run.json: lockstep (version), command, started (local time, ISO 8601), ranks, nodes, host,
// processor, cores, device, threads (of a rank), backend, libraries {mpi, cuda, nccl}, parameters,
// planned_bytes {device {..}, host {..}} of a rank (launch/rank_memory.h), global_batch, dataset {training,
// test, classes, class_names}, and device_memory on a GPU.
std::string run_facts(const World& world, Training& training, const Communicator& communicator);

// Called on rank 0. An IoError is logged as a warning; the run continues without the files.
void write_run_record(const Config& config, const std::string& config_text, const std::string& facts);

}  // namespace lockstep
