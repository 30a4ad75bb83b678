// SPDX-License-Identifier: Apache-2.0
//
// RunningSums: the fp32 sum of a step's micro-batches. If backward added to 16-bit gradients, each addition
// would round, and a term below half a unit of the sum would be lost. Here each micro-batch overwrites the
// gradients, which are added to memory of this class after its backward pass. The total is rounded once, into
// the gradients' memory. Any exchange may follow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/gradients/bucket_plan.h"
#include "comm/gradients/gradient_arena.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class RunningSums {
 public:
  // The plan and the arena outlive this.
  RunningSums(const BucketPlan& plan, const GradientArena& arena, Device device);
  static std::size_t planned_bytes(std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(float);
  }

  // Adds the gradients in the arena, of micro-batch `micro` (from 0, not the last one of a step). Later work
  // on `compute` may overwrite them.
  void keep(Stream& compute, std::int64_t micro);
  // True if micro-batches of a step were kept, and the last one is not added yet.
  bool under_way() const { return under_way_; }
  // Replaces a bucket of the last micro-batch in the arena with the sum over all micro-batches.
  void finish(Stream& compute, const Bucket& bucket);
  // Call when every bucket is finished.
  void end_step() { under_way_ = false; }

  std::size_t memory_bytes() const { return memory_.bytes(); }

 private:
  float* sums(std::int64_t begin) const { return reinterpret_cast<float*>(memory_.data()) + begin; }

  const BucketPlan& plan_;
  const GradientArena& arena_;
  Buffer memory_;  // f32, of all elements in the flat order
  bool under_way_ = false;
};

}  // namespace lockstep
