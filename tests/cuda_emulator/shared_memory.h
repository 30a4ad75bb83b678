// SPDX-License-Identifier: Apache-2.0
//
// A block's shared memory. Static __shared__ variables are thread_local, and every launch has a thread to
// itself: all thread-local variables of the program, as that thread sees them, are shared memory of kernels
// and nothing else. Dynamic shared memory is one of them.
#pragma once

#include <cstddef>

namespace lockstep::emulator {

inline constexpr std::size_t kMostSharedBytes = 48 * 1024;

class SharedMemory {
 public:
  // For blocks with this much dynamic shared memory, run by the calling thread.
  explicit SharedMemory(std::size_t dynamic_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Fills it all with 0xff: floats and doubles are NaN.
  void spoil();
  // Whether nothing was written behind the dynamic shared memory.
  bool intact() const;

 private:
  std::size_t dynamic_bytes_;
  std::byte* variables_ = nullptr;
  std::size_t variables_bytes_ = 0;
};

}  // namespace lockstep::emulator
