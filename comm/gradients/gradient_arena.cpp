// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/gradient_arena.h"

namespace lockstep {

GradientArena::GradientArena(std::span<Parameter> parameters, const BucketPlan& plan,
                             Communicator& communicator)
    : parameters_(parameters),
      memory_(communicator.allocate(plan.bytes())),
      ranges_(plan.ranges().begin(), plan.ranges().end()) {
  std::byte* next = memory_.data();
  for (FlatRange& range : ranges_) {
    range.data = next;
    next += range.bytes();
  }
  for (Parameter& parameter : parameters_) parameter.gradient = at(parameter.offset);
}

GradientArena::~GradientArena() {
  for (Parameter& parameter : parameters_) parameter.gradient = nullptr;
}

void* GradientArena::at(std::int64_t element) const {
  const FlatRange& range = element < ranges_.front().end ? ranges_.front() : ranges_.back();
  return range.at(element);
}

}  // namespace lockstep
