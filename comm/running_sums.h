// SPDX-License-Identifier: Apache-2.0
//
// RunningSums: what the micro-batches of a step add up to, in fp32. Where backward itself adds to gradients
// of 16 bits, each addition rounds, and a term of less than half a unit of the sum is lost. Here each
// micro-batch overwrites the gradients, and they are added to memory of this class after its backward pass.
// The sum of all is rounded once, into the gradients' memory. Any exchange may follow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/bucket_plan.h"
#include "comm/gradient_arena.h"
#include "core/buffer.h"
#include "core/stream.h"

namespace lockstep {

class RunningSums {
 public:
  // The plan and the arena outlive this.
  RunningSums(const BucketPlan& plan, const GradientArena& arena, Device device);
  static std::size_t planned_bytes(std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(float);
  }

  // The gradients of a micro-batch that is not the step's last, counted from 0, are in the arena, which may
  // be overwritten behind this.
  void keep(Stream& compute, std::int64_t micro);
  // Whether micro-batches of a step were kept, and the last one is not added yet.
  bool under_way() const { return under_way_; }
  // A bucket of the last one's is in the arena: the sum of all takes its place.
  void finish(Stream& compute, const Bucket& bucket);
  // Every bucket was finished.
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
