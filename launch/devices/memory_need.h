// SPDX-License-Identifier: Apache-2.0
//
// What training needs of a device's memory, and what to say when that is more than there is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"

namespace lockstep {

// What one rank needs, in bytes.
struct MemoryNeed {
  std::size_t activations = 0;  // the kernels' workspace is part of them
  std::size_t parameters = 0;   // half copies and running statistics are part of them
  std::size_t gradients = 0;    // sums in fp32 (comm.sum_type, train.reproducible) are part of them
  std::size_t optimizer = 0;
  std::size_t codecs = 0;   // about: what they pack, send and remember (comm.codec)
  std::size_t batches = 0;  // copies in a GPU's memory; a CPU reads the loader's

  std::size_t total() const { return activations + parameters + gradients + optimizer + codecs + batches; }
};

// What a rank needs for micro-batches of so many samples. It must not fall when they grow.
using NeedOfBatch = std::function<MemoryNeed(std::int64_t batch)>;

// Returns the largest batch below `too_large` that needs no more than the available bytes, or 0 when none
// does.
std::int64_t largest_batch(const NeedOfBatch& need, std::int64_t too_large, std::size_t available);

struct MemoryShortage {
  Device device;
  std::int64_t batch = 0;
  std::size_t available = 0;          // to each rank
  int sharing = 1;                    // ranks that share the device's memory
  std::vector<std::string> remedies;  // besides a smaller batch
};

// Tells a person what is planned and available, which batch is the largest that fits, and what to change.
std::string describe_shortage(const MemoryShortage& shortage, const NeedOfBatch& need);

// Whether a batch has room in what was available.
struct BatchRoom {
  bool fits = true;
  std::size_t needed = 0, available = 0;  // bytes, of a rank
  std::vector<std::string> remedies =
      {};  // with which it would, in words; empty where it fits, or none is known
};

// "12.5 MiB", "1.50 GiB"
std::string in_units(std::size_t bytes);

// What a rank may take of its device's memory. Throws MemoryErrors that describe the shortage.
class MemoryBudget {
 public:
  // The shortage is what there would be to say of one: its available bytes are those of the start.
  MemoryBudget(MemoryShortage shortage, NeedOfBatch need)
      : shortage_(std::move(shortage)), need_(std::move(need)) {}

  // That there is what is planned.
  void require() const;
  // To the rank, at the start.
  std::size_t available() const { return shortage_.available; }
  // Ranks on the device.
  int sharing() const { return shortage_.sharing; }
  // The largest batch of at most so many samples that has room in so many bytes; 0: none.
  std::int64_t largest_batch(std::int64_t most, std::size_t room) const;
  // Remedies are for who knows more.
  BatchRoom room_for(std::int64_t batch) const;
  // Says more of memory that runs out in the work than which allocation it was.
  void keep_within(const std::function<void()>& work) const;

 private:
  [[noreturn]] void throw_shortage(std::size_t available) const;

  MemoryShortage shortage_;
  NeedOfBatch need_;
};

}  // namespace lockstep
