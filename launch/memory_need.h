// SPDX-License-Identifier: Apache-2.0
//
// What training needs of a device's memory, and what to say when that is more than there is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/device.h"

namespace lockstep {

// Bytes of one rank.
struct MemoryNeed {
  std::size_t activations = 0;  // with the kernels' workspace
  std::size_t parameters = 0;   // with half copies and running statistics
  std::size_t gradients = 0;
  std::size_t optimizer = 0;
  std::size_t batches = 0;  // on a GPU

  std::size_t total() const { return activations + parameters + gradients + optimizer + batches; }
};

// By samples per rank and micro-batch; must not fall with them.
using NeedOfBatch = std::function<MemoryNeed(std::int64_t batch)>;

// The largest batch below `too_large` that needs no more than the available bytes; 0 when none does.
std::int64_t largest_batch(const NeedOfBatch& need, std::int64_t too_large, std::size_t available);

struct MemoryShortage {
  Device device;
  std::int64_t batch = 0;
  std::size_t available = 0;          // to each rank
  int sharing = 1;                    // ranks that share the device's memory
  std::vector<std::string> remedies;  // besides a smaller batch
};

// For people: what is planned and available, the largest batch that fits, and what to change.
std::string describe_shortage(const MemoryShortage& shortage, const NeedOfBatch& need);

}  // namespace lockstep
