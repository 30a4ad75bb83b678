// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/shared_memory.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include <cuda_runtime.h>
#include <link.h>

#include "tests/cuda_emulator/thread_sanitizer.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace lockstep {

// The definition of `extern __shared__ uint4 dynamic_shared[]` in kernels.
thread_local uint4 dynamic_shared[emulator::kMostSharedBytes / sizeof(uint4) + 64];

namespace emulator {
namespace {

thread_local unsigned sentinel = 0;

struct Variables {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// The calling thread's instances of the program's own thread-local variables, without those of libraries.
Variables thread_local_variables() {
  Variables found;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* result) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
      *static_cast<Variables*>(result) = {static_cast<std::byte*>(info->dlpi_tls_data),
                                          info->dlpi_phdr[i].p_memsz};
    }
    return 1;  // the first entry is the program: stop
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

// AddressSanitizer reports accesses from this address on.
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

// Pages of the variables, counted from their beginning.
constexpr std::size_t kPage = 4096;

// True if all bytes are 0xff.
bool is_spoiled(const std::byte* begin, std::size_t bytes) {
  std::uint64_t all = ~std::uint64_t{0};
  for (; bytes >= sizeof(all); begin += sizeof(all), bytes -= sizeof(all)) {
    std::uint64_t word = 0;
    std::memcpy(&word, begin, sizeof(word));
    all &= word;
  }
  return all == ~std::uint64_t{0} &&
         std::all_of(begin, begin + bytes, [](std::byte byte) { return byte == std::byte{0xff}; });
}

}  // namespace

SharedMemory::SharedMemory() {
  const Unseen unseen;
  const Variables variables = thread_local_variables();
  variables_ = variables.data;
  bytes_ = variables.bytes;
  const auto* mine = reinterpret_cast<std::byte*>(&sentinel);
  if (mine < variables_ || mine >= variables_ + bytes_) {
    throw std::logic_error("the emulator cannot find the program's thread-local variables");
  }
  written_.resize((bytes_ + kPage - 1) / kPage);
  std::memset(variables_, 0xff, bytes_);
}

void SharedMemory::begin(std::size_t dynamic_bytes) {
  const Unseen unseen;
  dynamic_bytes_ = dynamic_bytes;
  blocks_ = 0;
  for (const std::size_t page : pages_) written_[page] = false;
  pages_.clear();
  forget_accesses(variables_, bytes_);
  forbid(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
}

void SharedMemory::begin_block() {
  if (blocks_ > 0) {
    const Unseen unseen;
    permit(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
    if (std::has_single_bit(blocks_)) find_written();
    fill_written();
    forget_accesses(variables_, bytes_);
    forbid(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
  }
  ++blocks_;
}

bool SharedMemory::intact() const {
  permit(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
  const bool good = is_spoiled(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
  forbid(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
  return good;
}

void SharedMemory::end() {
  const Unseen unseen;
  permit(end_of_dynamic(dynamic_bytes_), bytes_behind(dynamic_bytes_));
  find_written();
  fill_written();
}

void SharedMemory::find_written() {
  for (std::size_t page = 0; page < written_.size(); ++page) {
    if (written_[page]) continue;
    const std::size_t begin = page * kPage;
    if (is_spoiled(variables_ + begin, std::min(kPage, bytes_ - begin))) continue;
    written_[page] = true;
    pages_.push_back(page);
  }
}

void SharedMemory::fill_written() {
  for (const std::size_t page : pages_) {
    const std::size_t begin = page * kPage;
    std::memset(variables_ + begin, 0xff, std::min(kPage, bytes_ - begin));
  }
}

}  // namespace emulator
}  // namespace lockstep
