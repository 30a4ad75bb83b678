// SPDX-License-Identifier: Apache-2.0
//
// Device memory access of the emulated libraries: whole operands are copied in before a computation and
// results are copied out after it, by functions that are compiled with sanitizers; the computation itself
// works on memory of one thread. Called in stream order on the runtime's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/cuda_emulator/libraries/elements.h"

namespace lockstep::emulator {

using Floats = std::vector<float>;

struct Extent {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
bool overlap(const Extent& a, const Extent& b);
bool is_aligned(const void* data, std::size_t bytes);

// Reads `count` contiguous elements.
Floats read_elements(const void* data, Element type, std::int64_t count);
void write_elements(const Floats& values, Element type, void* data);

// The device memory that an algorithm works in. It is filled with NaNs at the start.
class Workspace {
 public:
  Workspace(void* data, std::size_t bytes);

  void write(std::size_t at_byte, const float* values, std::int64_t count) const;
  void read(std::size_t at_byte, std::int64_t count, float* values) const;

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// Sums `parts` partial results of `count` floats each, which compute(part, floats) computes, in sequence.
// They are stored in the workspace's first parts * count floats.
template <typename Compute>
Floats sum_of_parts(const Workspace& workspace, std::int64_t parts, std::int64_t count, Compute compute) {
  Floats part(static_cast<std::size_t>(count));
  const std::size_t bytes = part.size() * sizeof(float);
  for (std::int64_t i = 0; i < parts; ++i) {
    compute(i, part.data());
    workspace.write(static_cast<std::size_t>(i) * bytes, part.data(), count);
  }
  Floats sum(part.size());
  for (std::int64_t i = 0; i < parts; ++i) {
    workspace.read(static_cast<std::size_t>(i) * bytes, count, part.data());
    add(part.data(), count, sum.data());
  }
  return sum;
}

}  // namespace lockstep::emulator
