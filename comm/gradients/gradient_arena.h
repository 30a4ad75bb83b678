// SPDX-License-Identifier: Apache-2.0
//
// GradientArena: the memory of all gradients, in the flat order of the parameters, allocated where
// collectives are fastest. Layers write into it: a gradient is a view into its bucket.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradients/bucket_plan.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class GradientArena {
 public:
  // Collective: allocates zeroed memory, and points every parameter's gradient into it until this ends. The
  // parameters outlive this.
  GradientArena(std::span<Parameter> parameters, const BucketPlan& plan, Communicator& communicator);
  ~GradientArena();
  GradientArena(const GradientArena&) = delete;
  GradientArena& operator=(const GradientArena&) = delete;

  // All gradients, padding included: one range per element type.
  std::span<const FlatRange> ranges() const { return ranges_; }
  // The address of an element of the flat order.
  void* at(std::int64_t element) const;
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  std::span<Parameter> parameters_;
  Buffer memory_;
  std::vector<FlatRange> ranges_;
};

}  // namespace lockstep
