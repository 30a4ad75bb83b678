// SPDX-License-Identifier: Apache-2.0
//
// The last words of a process. Its output may be a full pipe that nobody reads or a stopped terminal, and a
// thread that waits there holds the lock of standard output and of the log: a process that ends because
// something hangs waits for none of them.
#pragma once

#include <chrono>
#include <filesystem>
#include <string_view>

namespace lockstep {

// The process ends with this exit code after `limit` at the latest, whatever hangs. A later call replaces the
// limit and the code.
void end_within(std::chrono::seconds limit, int exit_code);

// Writes the text to standard error as far as it is taken within a second. Takes no lock.
void write_last_words(std::string_view text);

// Flushes standard output, unless that would block.
void flush_output();

// end_within(two seconds), write_last_words(), removes each RemovedAtEnd file, flush_output() and _exit().
[[noreturn]] void end_process(int exit_code, std::string_view text);

// A file that end_process() removes as long as this lives.
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
