// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels on the CPU, to find wrong indices, missing barriers and broken reductions without a GPU. Each
// thread of a block is a fiber: it runs until it waits at a barrier or for its warp, then the next one runs.
// Blocks run one after the other. Several host threads may run kernels at once; each kernel has a host thread
// to itself, which belongs to the one that called run() and ends with it.
//
// What a kernel must not rely on is made to differ: a warp runs ahead of the others until it waits for the
// block or ends; threads, warps and blocks run in ascending, descending or some seeded order, and shared
// memory holds NaNs (bytes of 0xff) when a block starts. A block whose threads wait for each other in vain,
// at different barriers or for a thread that has ended, is a KernelError that names the block and the places.
//
// To ThreadSanitizer each thread of a block is a thread of its own. What run()'s caller did before comes
// before all of them, and all of them before what it does next; barriers order the threads that meet there,
// and nothing else does, not even a shuffle, which is no memory barrier in CUDA. Two threads that touch one
// place, one of them writing, are a reported race, also from block to block (as far as they are neighbours in
// the order of this run).
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

// Of all launches without a seed that follow, on all host threads.
enum class Order { ascending, descending };
void set_order(Order order);

struct Launch {
  Size3 grid;
  Size3 block;
  std::size_t shared_bytes = 0;
  std::uint64_t seed =
      0;  // of the order; a host thread's next launch has another order. 0: as set_order() says
};
// Whether a GPU would take it without special settings.
bool allowed(const Launch& launch);
// Calls thread() for every thread of every block, and returns when all have ended. Throws KernelError.
void run(const Launch& launch, const std::function<void()>& thread);

// The rest is for the emulated language, to be called by a thread of a kernel.

struct Position {
  Size3 thread;
  Size3 block;
  Size3 block_size;
  Size3 grid;
};
inline const Position& position() { return *static_cast<const Position*>(Stacks::header_here()); }

// A place in the source; threads that meet must be at the same.
using Site = std::source_location;
using WarpValues = std::array<std::uint64_t, 32>;

// Waits for all threads of the block; how many came with a predicate that is not 0.
int barrier(int predicate, Site site);
// Waits for the warp's lanes in the mask; what each of them brought.
const WarpValues& exchange(unsigned mask, std::uint64_t value, Site site);
// The same without a value: but what the lanes did before comes before what they do next.
void warp_barrier(unsigned mask, Site site);
int lane_index();
// A lane that reads from one outside the mask would get anything.
void require_participant(unsigned mask, int lane, Site site);

// Around every atomic operation. An atomic operation orders nothing by itself: what a thread did before a
// fence comes before what another does behind a fence, when both used the same place atomically in between.
void before_atomic(void* place);
void after_atomic(void* place);
void fence();

}  // namespace lockstep::emulator
