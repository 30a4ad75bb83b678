// SPDX-License-Identifier: Apache-2.0
//
// What codecs remember from step to step beside their residuals (comm/codecs/residual.h), so that a step that
// is skipped changes nothing.
#pragma once

#include <cstdint>

#include "core/buffer.h"
#include "core/stream.h"
#include "kernels/codec.h"

namespace lockstep {

// A step reads what is there now and writes what is to be there next. Behind it settle() makes the one the
// other, unless the step is skipped: on a CPU, where the host knows that at once, the two change places; on a
// GPU, whose recorded steps name addresses, the new is copied.
class KeptMemory {
 public:
  // Zeros.
  KeptMemory(std::int64_t elements, Device device);

  // fp32; addresses are good until the next settle().
  float* now() const { return at(turn_); }
  float* next() const { return at(1 - turn_); }
  std::size_t memory_bytes() const { return memory_[0].bytes() + memory_[1].bytes(); }

  // Only behind a step that wrote all of next(). See GradientExchange::settle.
  void settle(Stream& compute, const std::int32_t* finite);

 private:
  float* at(int turn) const { return reinterpret_cast<float*>(memory_[turn].data()); }

  std::int64_t elements_ = 0;
  Buffer memory_[2];
  int turn_ = 0;
};

// How many steps were not skipped, for codecs that begin gently.
class StepCount {
 public:
  explicit StepCount(Device device) : count_(sizeof(StepDigits), device) {}

  // Steps so far, as the host knows them: on a GPU, where it does not see which were skipped, with those of
  // this process. Called once for each step, before its first bucket; not in work that is recorded.
  std::int64_t begin();
  void settle(Stream& compute, const std::int32_t* finite);
  // Two fp32 numbers, to be saved and restored.
  StepDigits* memory() const { return reinterpret_cast<StepDigits*>(count_.data()); }
  static constexpr std::int64_t kNumbers = 2;
  std::size_t memory_bytes() const { return count_.bytes(); }

 private:
  Buffer count_;
  std::int64_t known_ = -1;  // on a GPU; -1: not asked yet
};

}  // namespace lockstep
