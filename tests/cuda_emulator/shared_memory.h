// SPDX-License-Identifier: Apache-2.0
//
// A block's shared memory. Static __shared__ variables are thread_local, and kernels run on host threads of
// their own: all thread-local variables of the program, as such a thread sees them, are shared memory of
// kernels and nothing else. Dynamic shared memory is one of them.
//
// They hold 0xff between kernels, and whenever a block begins: floats and doubles are NaN. Between blocks
// only those pages are filled that blocks of this launch have been seen to write: all are looked at behind
// the first block, the second, the fourth and so on, and behind the last.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::emulator {

inline constexpr std::size_t kMostSharedBytes = 48 * 1024;

class SharedMemory {
 public:
  // Of the calling thread, which alone may use it.
  SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // For the blocks of a launch with this much dynamic shared memory.
  void begin(std::size_t dynamic_bytes);
  void begin_block();
  // Whether nothing was written behind the dynamic shared memory. Under AddressSanitizer always: it has ended
  // the program otherwise.
  bool intact() const;
  // After the last block.
  void end();

 private:
  void find_written();
  void fill_written();

  std::byte* variables_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<bool> written_;       // by page: by a block of this launch, as far as is known
  std::vector<std::size_t> pages_;  // those that are
  std::size_t dynamic_bytes_ = 0;
  std::size_t blocks_ = 0;
};

}  // namespace lockstep::emulator
