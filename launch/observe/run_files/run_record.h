// SPDX-License-Identifier: Apache-2.0
//
// The record of a run's last start: config.toml, the whole configuration, with which the same command repeats
// the training; and run.json, the program, the machine and the libraries. A file of an earlier start is
// renamed (name_of_earlier) where it differs in more than started, command and device_memory.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

// Called on rank 0. An IoError is logged as a warning; the run continues without the files.
// facts: see run_facts() (launch/program/train_command/run_facts.h).
void write_run_record(const std::filesystem::path& folder, const std::string& config_text,
                      const std::string& facts);

}  // namespace lockstep
