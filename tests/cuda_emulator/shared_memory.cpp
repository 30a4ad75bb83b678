// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <cuda_runtime.h>
#include <link.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace lockstep {

// What `extern __shared__ uint4 dynamic_shared[]` in a kernel refers to.
thread_local uint4 dynamic_shared[emulator::kMostSharedBytes / sizeof(uint4) + 64];

namespace emulator {
namespace {

thread_local unsigned sentinel = 0;

struct Variables {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// The program's own thread-local variables, as the calling thread has them; libraries' are others.
Variables thread_local_variables() {
  Variables found;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* result) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
      *static_cast<Variables*>(result) = {static_cast<std::byte*>(info->dlpi_tls_data),
                                          info->dlpi_phdr[i].p_memsz};
    }
    return 1;  // the first is the program: no further
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

// AddressSanitizer reports accesses from here on.
std::byte* end_of_dynamic(std::size_t bytes) { return reinterpret_cast<std::byte*>(dynamic_shared) + bytes; }
std::size_t bytes_behind(std::size_t bytes) { return sizeof(dynamic_shared) - bytes; }

void forbid([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(begin, bytes);
#endif
}
void permit([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

}  // namespace

SharedMemory::SharedMemory(std::size_t dynamic_bytes) : dynamic_bytes_(dynamic_bytes) {
  const Variables variables = thread_local_variables();
  variables_ = variables.data;
  variables_bytes_ = variables.bytes;
  const auto* mine = reinterpret_cast<std::byte*>(&sentinel);
  if (mine < variables_ || mine >= variables_ + variables_bytes_) {
    throw std::logic_error("the emulator does not find the program's thread-local variables");
  }
}

SharedMemory::~SharedMemory() { permit(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_)); }

void SharedMemory::spoil() {
  permit(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
  std::memset(variables_, 0xff, variables_bytes_);
  forbid(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
}

bool SharedMemory::intact() const {
  permit(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
  const std::byte* behind = end_of_dynamic(dynamic_bytes_);
  return std::all_of(behind, behind + bytes_behind(dynamic_bytes_),
                     [](std::byte byte) { return byte == std::byte{0xff}; });
}

}  // namespace emulator
}  // namespace lockstep
