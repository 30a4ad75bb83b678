// SPDX-License-Identifier: Apache-2.0
//
// The folder of a run (run.dir): one job at a time writes there, and files of earlier jobs are kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/system/file_claim.h"

namespace lockstep {

// Reserves the folder for this job until destruction or the end of the process: locks its file run.lock,
// which names the holder. Held by one rank of a job. Removes unfinished files of an earlier job that was
// killed.
class RunLock {
 public:
  // Creates the folder. Throws ConfigError that names the job that holds it (host, process, since when), and
  // IoError. Logs a warning on a file system that cannot lock.
  // patience: how long to wait for another job, which may still save. Above 0, a folder that is still held
  // afterwards throws Error with exit_code::resumable.
  explicit RunLock(const std::filesystem::path& folder, std::chrono::milliseconds patience = {});

 private:
  FileClaim claim_;
};

// Creates the folder and its parents where they are missing. Throws IoError.
void create_folder(const std::filesystem::path& folder);

// The network with the best evaluation (run.keep_best).
inline constexpr const char* kBestFile = "best.safetensors";
// The network before gradients stopped being finite (TrainerOptions::last_good).
inline constexpr const char* kLastGoodFile = "last_good.safetensors";

// Creates the folder, and in it empty files metrics.jsonl and steps.jsonl. Renames these files of an earlier
// run, and its events.jsonl, event_command.log, evaluations.jsonl, best.safetensors and
// last_good.safetensors, to metrics.N.jsonl and so on, with N from 1 in the order of the runs. Throws
// IoError.
void begin_metrics(const std::filesystem::path& folder);

// Renames a file of an earlier run as begin_metrics() does; does nothing where there is none. Renames a
// symbolic link itself, not its target. Throws IoError.
void set_aside(const std::filesystem::path& path);

// For a resumed run: keeps the lines of the first `epochs` epochs of metrics.jsonl, and that of the next
// epoch where `partial`. If it drops lines, a copy of the whole file gets a name as in begin_metrics().
// Creates a missing metrics.jsonl. Throws IoError, and DataError where it is not a regular file.
void continue_metrics(const std::filesystem::path& folder, std::int64_t epochs, bool partial);

// Likewise keeps the lines of steps.jsonl and events.jsonl up to step `steps`, and those of evaluations.jsonl
// before it.
void continue_steps(const std::filesystem::path& folder, std::int64_t steps);

// The name under which a file of an earlier run is kept: "metrics.1.jsonl" for "metrics.jsonl", with the
// first free number.
std::filesystem::path name_of_earlier(const std::filesystem::path& path);

// Appends to a file, and creates it if necessary; does not follow a symbolic link. Returns 0 or an errno
// value; after an error the file has its previous size, so that a reader sees all of the bytes or none.
int append_whole(const std::filesystem::path& path, std::string_view bytes);

}  // namespace lockstep
