// SPDX-License-Identifier: Apache-2.0
//
// Processor: runs the blocks of a kernel one after the other on a dedicated host thread. Keeps the state of
// the block's threads and what they wait for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/fibers.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/stacks.h"
#include "tests/cuda_emulator/walk.h"

namespace lockstep::emulator {

// Addresses for ThreadSanitizer: the host thread announces `begin` before a kernel and follows `end` after
// it.
struct KernelOrder {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class Processor {
 public:
  explicit Processor(KernelOrder& order);
  // Runs every block. make_walk returns the order of blocks, of a block's warps and of a warp's lanes, given
  // their count. Throws KernelError; no thread of the kernel continues after it.
  void run(const Launch& launch, const std::function<void()>& thread,
           const std::function<Walk(std::size_t count)>& make_walk);

  // The following functions are called by threads of a block.
  static Processor& here() { return *static_cast<Here*>(Stacks::header_here())->processor; }
  int barrier(int predicate, Site site);
  const WarpValues& exchange(unsigned mask, std::uint64_t value, Site site, bool orders_memory);
  int lane_index() const;
  void before_atomic(void* place);
  void after_atomic(void* place);
  void fence();

 private:
  enum class State { fresh, ready, waits_for_block, waits_for_warp, ended };
  struct Thread {
    Fiber* fiber = nullptr;
    Size3 index;
    State state = State::fresh;
    Site site;
    unsigned mask = 0;        // lanes of its warp that it waits for
    std::uint64_t value = 0;  // its own value of the exchange
    bool orders_memory = false;
    WarpValues received = {};
    int count = 0;
    bool fenced = false;
    std::vector<void*> atomics;  // addresses used atomically since its last fence

    bool waits_with(const Thread& other) const;
  };
  // The header of the stacks.
  struct Here {
    Position position;
    Processor* processor;
  };

  void run_block();
  void begin_block();
  void end_block();
  bool run_warp(std::size_t warp);
  void resume(Thread& thread);
  void run_threads();
  bool next_in_warp();
  void become(Thread& thread);
  void wait(State state, Site site);
  void release_warp(const Thread& last);
  bool release_block();
  template <typename Each>
  void order_memory(std::size_t first, std::size_t end, Each takes_part);
  std::string deadlock() const;

  KernelOrder& order_;
  Stacks stacks_;
  Here& here_;
  Fibers fibers_;
  SharedMemory shared_;
  const std::function<void()>* function_ = nullptr;
  std::vector<Thread> threads_;
  std::size_t count_ = 0;                  // threads of a block
  std::array<unsigned, 32> waiting_ = {};  // lanes of each warp that wait for other lanes
  Walk warps_, lanes_,
      last_lanes_;              // orders of warps, of lanes, and of lanes of the last warp, at their start
  std::size_t warp_begin_ = 0;  // first thread of the running warp
  Walk lane_;                   // the next lane to run
  std::size_t lanes_left_ = 0;  // in the current pass over the warp
  Thread* running_ = nullptr;
  std::uint64_t meeting_ = 0;  // an address for ThreadSanitizer
};

}  // namespace lockstep::emulator
