// SPDX-License-Identifier: Apache-2.0
//
// Stacks: the memory of the stacks of a kernel's threads. It is aligned to its size, so that code on a stack
// can find the beginning of the memory from the stack pointer. The emulator's state of the kernel is there,
// because thread-local variables are the kernel's shared memory. An inaccessible page below each stack ends
// the program on a stack overflow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::emulator {

class Stacks {
 public:
  static constexpr std::size_t kBytes = std::size_t{512}
                                        << 20;  // of address space; only used pages take memory
  static constexpr std::size_t kHeaderBytes = 4096;
  static constexpr std::size_t kMost = 2048;

  // Throws std::bad_alloc.
  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  // Initially zeros.
  void* header() const { return begin_; }
  // One of kMost stacks, newly mapped.
  std::span<std::byte> stack(std::size_t place) const;

  // The header of the Stacks on which the calling code runs.
  static void* header_here() {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) &
                                   ~(kBytes - 1));
  }

 private:
  std::byte* begin_ = nullptr;
};

}  // namespace lockstep::emulator
