// SPDX-License-Identifier: Apache-2.0
//
// Output at the end of a process. Standard output or error may be a full pipe without a reader or a stopped
// terminal, and a thread blocked there holds the lock of standard output or of the log. A process that ends
// because of a hang does not wait for these locks.
#pragma once

#include <chrono>
#include <filesystem>
#include <string_view>

namespace lockstep {

// Ends the process with this exit code after `limit` at the latest, even if threads hang. A later call
// replaces the limit and the code.
void end_within(std::chrono::seconds limit, int exit_code);

// Writes to standard error as much of the text as it accepts within one second. Takes no lock.
void write_last_words(std::string_view text);

// Flushes standard output, unless that would block.
void flush_output();

// end_within(two seconds), write_last_words(), removes each RemovedAtEnd file, flush_output() and _exit().
[[noreturn]] void end_process(int exit_code, std::string_view text);

// A file that end_process() removes while this object exists.
class RemovedAtEnd {
 public:
  explicit RemovedAtEnd(std::filesystem::path path);
  ~RemovedAtEnd();
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
