// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels on the CPU, to find wrong indices, missing barriers and broken reductions without a GPU. Each
// thread of a block is a fiber: it runs until it waits at a barrier or for its warp, then the next one runs.
// Blocks run one after the other.
//
// What a kernel must not rely on is made to differ: a warp runs ahead of the others until it waits for the
// block or ends; threads, warps and blocks run in ascending or descending order
// (set_order), and shared memory holds NaNs (bytes of 0xff) when a block starts. A block whose threads wait
// for each other in vain, at different barriers or for a thread that has ended, is a KernelError that names
// the block and the places. Used by one host thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>

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

enum class Order { ascending, descending };
void set_order(Order order);

struct Launch {
  Size3 grid;
  Size3 block;
  std::size_t shared_bytes = 0;
};
// Whether a GPU would take it without special settings.
bool allowed(const Launch& launch);
// Calls thread() for every thread of every block.
void run(const Launch& launch, const std::function<void()>& thread);

// The rest is for the emulated language: of the thread that is running.
extern Size3 thread_index;
extern Size3 block_index;
extern Size3 block_size;
extern Size3 grid_size;

// A place in the source; threads that meet must be at the same.
using Site = std::source_location;
using WarpValues = std::array<std::uint64_t, 32>;

// Waits for all threads of the block; how many came with a predicate that is not 0.
int barrier(int predicate, Site site);
// Waits for the warp's lanes in the mask; what each of them brought.
const WarpValues& exchange(unsigned mask, std::uint64_t value, Site site);
int lane_index();
// A lane that reads from one outside the mask would get anything.
void require_participant(unsigned mask, int lane, Site site);

}  // namespace lockstep::emulator
