// SPDX-License-Identifier: Apache-2.0
//
// How the emulated libraries touch device memory: whole operands are copied in before they are computed with
// and results are copied out afterwards, by functions that sanitizers see; what happens in between is on
// memory of one thread. Called in a stream's order, on the runtime's thread.
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

// `count` elements side by side.
Floats read_elements(const void* data, Element type, std::int64_t count);
void write_elements(const Floats& values, Element type, void* data);

// Memory on the device that an algorithm computes in. Holds NaNs when work begins.
class Workspace {
 public:
  Workspace(void* data, std::size_t bytes);

  void write(std::size_t at_byte, const float* values, std::int64_t count) const;
  void read(std::size_t at_byte, std::int64_t count, float* values) const;
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// Sums `parts` partial results, each of `count` floats, that compute(part, floats) makes: one after the
// other, through the workspace's first parts * count floats.
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
