// SPDX-License-Identifier: Apache-2.0
//
// State that codecs keep from step to step. A skipped step does not change it.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "kernels/codec.h"

namespace lockstep {

class GradientExchange;

// A step reads now() and writes next(). Then settle() makes next() the current state, unless the step is
// skipped: on a CPU by swapping the two; on a GPU, whose recorded steps contain addresses, by copying.
class KeptMemory {
 public:
  // Initialised with zeros.
  KeptMemory(std::int64_t elements, Device device);

  // fp32; addresses are valid until the next settle().
  float* now() const { return at(turn_); }
  float* next() const { return at(1 - turn_); }
  std::size_t memory_bytes() const { return memory_[0].bytes() + memory_[1].bytes(); }

  // Only after a step that wrote all of next(). See GradientExchange::settle.
  void settle(Stream& compute, const std::int32_t* finite);

 private:
  float* at(int turn) const { return reinterpret_cast<float*>(memory_[turn].data()); }

  std::int64_t elements_ = 0;
  Buffer memory_[2];
  int turn_ = 0;
};

// The number of steps, for codecs with warm-up. On a GPU it includes skipped steps, because the host does not
// know in time which ones are.
class StepCount {
 public:
  explicit StepCount(Device device) : count_(sizeof(StepDigits), device) {}

  // Call once per step, before its first bucket, and not in recorded work.
  std::int64_t begin();
  void settle(Stream& compute, const std::int32_t* finite);
  // Two fp32 numbers, to be saved and restored.
  StepDigits* memory() const { return reinterpret_cast<StepDigits*>(count_.data()); }
  static constexpr std::int64_t kNumbers = 2;
  // ExchangeState::counts_skipped of memory().
  bool counts_skipped() const { return !is_host_memory(count_.device()); }
  std::size_t memory_bytes() const { return count_.bytes(); }

 private:
  Buffer count_;
  std::int64_t known_ = -1;  // on a GPU; -1: not read yet
};

// Subtracts the last `steps` steps, which were skipped, from the counts of the exchange that include skipped
// steps, so that a state can be saved with the position before those steps. No step is under way, and none
// follows in this process.
void take_back_skipped(GradientExchange& exchange, std::int64_t steps, Stream& compute);

}  // namespace lockstep
