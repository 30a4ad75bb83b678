// SPDX-License-Identifier: Apache-2.0
//
// The folder of a run (run.dir): one job at a time writes there, and what an earlier one wrote stays.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/file_claim.h"

namespace lockstep {

// The folder is this job's for as long as this lives, or its process does: the file run.lock in it is locked
// and tells who holds it. One rank of a job has it.
class RunLock {
 public:
  // Makes the folder. Throws ConfigError naming the job that has it (host, process, since when), and IoError.
  // A file system that cannot lock gets a warning instead.
  // patience: how long to wait for a job that has the folder, as one has that still saves. Where it has it
  // even then, the Error has exit_code::resumable.
  explicit RunLock(const std::filesystem::path& folder, std::chrono::milliseconds patience = {});

 private:
  static FileClaim lock(const std::filesystem::path& folder, std::chrono::milliseconds patience);

  FileClaim claim_;
};

// The network that was evaluated best (run.keep_best).
inline constexpr const char* kBestFile = "best.safetensors";

// Makes the folder, and in it metrics.jsonl and steps.jsonl, which are then empty. What an earlier run wrote
// there, or to events.jsonl, evaluations.jsonl and best.safetensors, is renamed to metrics.N.jsonl, N from 1
// in the order of the runs. Throws IoError.
void begin_metrics(const std::filesystem::path& folder);

// For a run that goes on, and for files that are regular ones: metrics.jsonl keeps its lines of the first
// `epochs` epochs, and a line of the one after them where `partial`. Where it had more, or half a line, all
// it had is renamed as begin_metrics() does. Throws IoError.
void continue_metrics(const std::filesystem::path& folder, std::int64_t epochs, bool partial);

// Likewise steps.jsonl keeps its lines up to a step, and evaluations.jsonl those before it.
void continue_steps(const std::filesystem::path& folder, std::int64_t steps);

// Where what an earlier run left at this path goes: "metrics.1.jsonl" of "metrics.jsonl", with the first
// number that is free.
std::filesystem::path name_of_earlier(const std::filesystem::path& path);

// Appends to a file, which is made where there is none, and not to what a link leads to. Returns 0, or the
// system's error; then the file ends where it did, so that a reader never meets half of it.
int append_whole(const std::filesystem::path& path, std::string_view bytes);

}  // namespace lockstep
