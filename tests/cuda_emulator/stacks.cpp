// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/stacks.h"

#include <new>

#include <sys/mman.h>

#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::size_t kPitch = kPage + kStackBytes;
static_assert(Stacks::kHeaderBytes + Stacks::kMost * kPitch <= Stacks::kBytes);

// Replaces the memory by zeros and discards ThreadSanitizer's records of it.
void renew(std::byte* begin, std::size_t bytes) {
  const Unseen unseen;
  void* mapped = mmap(begin, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
}

}  // namespace

Stacks::Stacks() {
  const Unseen unseen;
  void* reserved = mmap(nullptr, 2 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw std::bad_alloc();
  auto* first = static_cast<std::byte*>(reserved);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(first) & (kBytes - 1);
  begin_ = first + before;
  if (before > 0) munmap(first, before);
  munmap(begin_ + kBytes, kBytes - before);
  renew(begin_, kHeaderBytes);
}

Stacks::~Stacks() {
  const Unseen unseen;
  munmap(begin_, kBytes);
}

std::span<std::byte> Stacks::stack(std::size_t place) const {
  std::byte* begin = begin_ + kHeaderBytes + place * kPitch + kPage;
  renew(begin, kStackBytes);
  // The upper ends of stacks differ in their cache sets.
  constexpr std::size_t kColours = 16, kApart = kPage / kColours;
  return {begin, kStackBytes - place % kColours * kApart};
}

}  // namespace lockstep::emulator
