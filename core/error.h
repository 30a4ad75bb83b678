// SPDX-License-Identifier: Apache-2.0
//
// Errors and checks. Library code throws; only a program's main() turns an Error into an exit code. A
// failed CHECK is a defect in Lockstep or in its caller and carries expression, place and rank. The named
// subclasses are for users: their message says what was given, what was expected and what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace lockstep {

// Exit codes of every Lockstep program.
namespace exit_code {
inline constexpr int done = 0;
inline constexpr int usage = 64;      // wrong command line
inline constexpr int data = 65;       // corrupt dataset or checkpoint
inline constexpr int failed = 70;     // internal failure, or a loss that is not finite
inline constexpr int io = 74;         // file missing, unreadable, disk full; out of memory
inline constexpr int resumable = 75;  // stopped, can be resumed
inline constexpr int config = 78;     // impossible configuration
}  // namespace exit_code

class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

  // True if all ranks threw this error after a common decision. One rank then reports it and the job ends in
  // order. Any other error ends the job at once, because peers may be waiting.
  bool agreed() const { return agreed_; }
  void set_agreed() { agreed_ = true; }

 private:
  int exit_code_;
  bool agreed_ = false;
};

struct UsageError : Error {
  explicit UsageError(const std::string& message) : Error(exit_code::usage, message) {}
};
struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error(exit_code::config, message) {}
};
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(exit_code::data, message) {}
};
struct IoError : Error {
  explicit IoError(const std::string& message) : Error(exit_code::io, message) {}
};
// A device's memory, or the host's, ran out.
struct MemoryError : Error {
  explicit MemoryError(const std::string& message) : Error(exit_code::io, message) {}
};

// The rank in log lines and failed checks: 0 until World::join. All threads of a process share it, except a
// thread with an open RankScope (tests run ranks as threads).
int current_rank();
void set_process_rank(int rank);

// The current training step, counted from 1; 0 outside training steps. The host may learn of a failure on a
// device or another thread up to a step later.
std::int64_t current_step();
void set_current_step(std::int64_t step);

// The place of an error, for its message: "rank 2", or "rank 2 in step 17".
std::string current_place();

class RankScope {
 public:
  explicit RankScope(int rank);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  int previous_;
};

namespace detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& message);
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail
}  // namespace lockstep

// CHECK(condition) or CHECK(condition, "format {}", value): throws Error(exit_code::failed).
#define CHECK(condition, ...)                                                     \
  ((condition) ? void()                                                           \
               : ::lockstep::detail::check_failed(#condition, __FILE__, __LINE__, \
                                                  ::lockstep::detail::check_message(__VA_ARGS__)))
