// SPDX-License-Identifier: Apache-2.0
//
// The device memory that training needs, and the message when it exceeds the available memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "launch/observe/account/batch_room.h"

namespace lockstep {

// Memory of one rank, in bytes.
struct MemoryNeed {
  std::size_t activations = 0;  // the kernels' workspace is part of them
  std::size_t parameters = 0;   // half copies and running statistics are part of them
  std::size_t gradients = 0;    // sums in fp32 (comm.sum_type, train.reproducible) are part of them
  std::size_t optimizer = 0;
  std::size_t codecs = 0;   // estimate: buffers and state of codecs (comm.codec)
  std::size_t batches = 0;  // copies in a GPU's memory; a CPU reads the loader's

  std::size_t total() const { return activations + parameters + gradients + optimizer + codecs + batches; }
};

// The need of a rank for micro-batches of `batch` samples. It must not decrease as the batch grows.
using NeedOfBatch = std::function<MemoryNeed(std::int64_t batch)>;

// Returns the largest batch below `too_large` that needs no more than the available bytes, or 0 when none
// does.
std::int64_t largest_batch(const NeedOfBatch& need, std::int64_t too_large, std::size_t available);

struct MemoryShortage {
  Device device;
  std::int64_t batch = 0;
  std::size_t available = 0;          // to each rank
  int sharing = 1;                    // ranks that share the device's memory
  bool limited = false;               // world.memory_limit sets `available`
  std::vector<std::string> remedies;  // besides a smaller batch
};

// Describes the planned and available memory, the largest batch that fits, and what to change.
std::string describe_shortage(const MemoryShortage& shortage, const NeedOfBatch& need);

// The memory that a rank may use on its device. Throws MemoryErrors that describe the shortage.
class MemoryBudget {
 public:
  // shortage: the template of the error; its available bytes are those at the start.
  MemoryBudget(MemoryShortage shortage, NeedOfBatch need)
      : shortage_(std::move(shortage)), need_(std::move(need)) {}

  // Throws if the planned need exceeds the available memory.
  void require() const;
  // Bytes for this rank at the start.
  std::size_t available() const { return shortage_.available; }
  // Ranks on the device.
  int sharing() const { return shortage_.sharing; }
  // The largest batch up to `most` that needs at most `room` bytes; 0: none.
  std::int64_t largest_batch(std::int64_t most, std::size_t room) const;
  // Leaves the remedies empty; the caller adds them.
  BatchRoom room_for(std::int64_t batch) const;
  // Runs work(). If it throws a MemoryError, logs it and throws one that describes the shortage.
  void keep_within(const std::function<void()>& work) const;

 private:
  [[noreturn]] void throw_shortage(std::size_t available) const;

  MemoryShortage shortage_;
  NeedOfBatch need_;
};

}  // namespace lockstep
