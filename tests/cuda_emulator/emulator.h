// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels on the CPU to find wrong indices, missing barriers and broken reductions without a GPU. Each
// thread of a block is a fiber: it runs until it waits at a barrier or for its warp, then the next one runs.
// Blocks run one after the other. Several host threads may run kernels at once. The kernels of a host thread
// run on a separate thread, which ends with it.
//
// The emulator varies everything that a kernel must not rely on. A warp runs until it waits for the block or
// ends. Threads, warps and blocks run in ascending, descending or seeded order. Shared memory contains NaNs
// (bytes of 0xff) at the start of a block. If the threads of a block can never continue, because they wait at
// different barriers or for a thread that has ended, run() throws a KernelError with the block and the
// places.
//
// For ThreadSanitizer each thread of a block is a separate thread. Accesses of run()'s caller before the call
// are ordered before all threads, and later accesses after them. Barriers order the threads that wait there.
// Nothing else orders threads, not even a shuffle, which is no memory barrier in CUDA. If two threads access
// the same address and one of them writes, ThreadSanitizer reports a race, also between blocks that are
// neighbours in the order of this run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>

#include "tests/cuda_emulator/stacks.h"

namespace lockstep::emulator {

// CUDA's dim3 and uint3.
struct Size3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;

  constexpr Size3() = default;
  constexpr explicit Size3(unsigned of_x, unsigned of_y = 1, unsigned of_z = 1) : x(of_x), y(of_y), z(of_z) {}
  constexpr std::size_t volume() const { return std::size_t{x} * y * z; }
};

struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The order of all following launches without a seed, on all host threads.
enum class Order { ascending, descending };
void set_order(Order order);

struct Launch {
  Size3 grid;
  Size3 block;
  std::size_t shared_bytes = 0;
  std::uint64_t seed =
      0;  // seed of the order, which differs from launch to launch of a host thread. 0: as set by set_order()
};
// Returns whether a GPU would accept the launch without special settings.
bool allowed(const Launch& launch);
// Calls thread() for every thread of every block, and returns when all have ended. Throws KernelError.
void run(const Launch& launch, const std::function<void()>& thread);

// The following functions implement the CUDA language. Threads of a kernel call them.

struct Position {
  Size3 thread;
  Size3 block;
  Size3 block_size;
  Size3 grid;
};
inline const Position& position() { return *static_cast<const Position*>(Stacks::header_here()); }

// A place in the source. Threads that wait for each other must be at the same place.
using Site = std::source_location;
using WarpValues = std::array<std::uint64_t, 32>;

// Waits for all threads of the block. Returns the number of threads with a nonzero predicate.
int barrier(int predicate, Site site);
// Waits for the warp's lanes in the mask. Returns the value of each lane.
const WarpValues& exchange(unsigned mask, std::uint64_t value, Site site);
// The same without values, and a memory barrier: orders the lanes' earlier accesses before their later ones.
void warp_barrier(unsigned mask, Site site);
int lane_index();
// Throws KernelError if the lane is not in the mask: reading from it would give an undefined value.
void require_participant(unsigned mask, int lane, Site site);

// Called around every atomic operation. An atomic operation alone orders nothing. Accesses of a thread before
// a fence are ordered before accesses of another thread after a fence if both use the same address atomically
// in between.
void before_atomic(void* place);
void after_atomic(void* place);
void fence();

}  // namespace lockstep::emulator
