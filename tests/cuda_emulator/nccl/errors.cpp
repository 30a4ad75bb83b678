// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/errors.h"

#include <atomic>
#include <cstdio>
#include <list>
#include <mutex>

#include <fmt/format.h>

#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

// Messages are never freed, because callers may keep the pointer to the last one.
struct Complaints {
  std::mutex mutex;
  std::list<std::string> all;
  std::atomic<const char*> last = "";
};

Complaints& complaints() {
  static Complaints& made = *new Complaints;
  return made;
}

void keep(std::string_view message) {
  const std::lock_guard lock(complaints().mutex);
  complaints().last = complaints().all.emplace_back(message).c_str();
}

}  // namespace

ncclResult_t complain(ncclResult_t status, std::string_view message) {
  const Unseen unseen;
  keep(message);
  const std::string line = fmt::format("emulated NCCL: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  return status;
}

const char* last_complaint() {
  const Unseen unseen;
  return complaints().last;
}

ncclResult_t requested_fault(const char* function) {
  const int status = injected_fault(function);
  if (status == 0) return ncclSuccess;
  const Unseen unseen;
  keep(fmt::format("{} fails as requested by LOCKSTEP_EMULATED_FAULTS", function));
  return status > 0 && status < ncclNumResults ? static_cast<ncclResult_t>(status) : ncclInternalError;
}

}  // namespace lockstep::emulator
