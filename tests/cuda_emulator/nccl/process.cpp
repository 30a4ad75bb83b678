// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/process.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

namespace lockstep::emulator {
namespace {

struct ProcessStatus {
  char state = 'X';  // dead
  std::uint64_t started = 0;
};

// proc(5): reads the 3rd and the 22nd field of stat. The 2nd, a name in parentheses, may contain any
// character.
ProcessStatus read_status(std::int64_t number) {
  std::ifstream file(fmt::format("/proc/{}/stat", number));
  std::stringstream text;
  text << file.rdbuf();
  const std::string fields = text.str();
  const std::size_t name_end = fields.rfind(')');
  ProcessStatus status;
  if (name_end == std::string::npos) return status;
  std::istringstream rest(fields.substr(name_end + 1));
  rest >> status.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  rest >> status.started;
  return status;
}

std::uint64_t read_host_identity() {
  const char* given = std::getenv("NCCL_HOSTID");
  if (given != nullptr && *given != '\0') return std::hash<std::string>{}(given);
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return std::hash<std::string>{}(name);
}

}  // namespace

Process this_process() {
  const std::int64_t number = getpid();
  return {number, read_status(number).started};
}

bool alive(const Process& process) {
  const ProcessStatus status = read_status(process.number);
  return status.state != 'X' && status.state != 'Z' && status.started == process.started;
}

std::uint64_t host_identity() {
  static const std::uint64_t identity = read_host_identity();
  return identity;
}

}  // namespace lockstep::emulator
