// SPDX-License-Identifier: Apache-2.0
//
// The shared memory of a block. Static __shared__ variables are thread_local, and kernels run on dedicated
// host threads, so all thread-local variables of such a thread are shared memory of kernels. Dynamic shared
// memory is one of these variables.
//
// The memory contains 0xff between kernels and at the start of each block, so floats and doubles are NaN.
// Between blocks only the pages that blocks of this launch are known to write are filled. All pages are
// checked after the first block, the second, the fourth and so on, and after the last.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::emulator {

inline constexpr std::size_t kMostSharedBytes = 48 * 1024;

class SharedMemory {
 public:
  // The shared memory of the calling thread, the only one that may use the object.
  SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Prepares for the blocks of a launch with this much dynamic shared memory.
  void begin(std::size_t dynamic_bytes);
  void begin_block();
  // True if nothing was written beyond the dynamic shared memory. Always true under AddressSanitizer, which
  // ends the program at such a write.
  bool intact() const;
  // Called after the last block.
  void end();

 private:
  void find_written();
  void fill_written();

  std::byte* variables_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<bool> written_;       // by page: known to be written by a block of this launch
  std::vector<std::size_t> pages_;  // the written pages
  std::size_t dynamic_bytes_ = 0;
  std::size_t blocks_ = 0;
};

}  // namespace lockstep::emulator
