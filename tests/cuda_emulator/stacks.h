// SPDX-License-Identifier: Apache-2.0
//
// Stacks: the memory in which the stacks of a kernel's threads lie. It is aligned to its size: whoever runs
// on one of them finds its beginning by the stack pointer, and there what the emulator knows about the
// kernel. Thread-local variables cannot hold that, for they are the kernel's shared memory. Below each stack
// lies a page nobody may touch: a thread that needs more ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::emulator {

class Stacks {
 public:
  static constexpr std::size_t kBytes = std::size_t{512} << 20;  // of addresses; memory is only what is used
  static constexpr std::size_t kHeaderBytes = 4096;
  static constexpr std::size_t kMost = 2048;

  // Throws std::bad_alloc.
  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  // Zeros at first.
  void* header() const { return begin_; }
  // One of kMost, as new.
  std::span<std::byte> stack(std::size_t place) const;

  // The header of the stacks of which the calling thread uses one.
  static void* header_here() {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) &
                                   ~(kBytes - 1));
  }

 private:
  std::byte* begin_ = nullptr;
};

}  // namespace lockstep::emulator
