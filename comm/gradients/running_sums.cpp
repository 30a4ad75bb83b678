// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/running_sums.h"

#include "kernels/backend.h"

namespace lockstep {

RunningSums::RunningSums(const BucketPlan& plan, const GradientArena& arena, Device device)
    : plan_(plan), arena_(arena), memory_(planned_bytes(plan.elements()), device) {}

void RunningSums::keep(Stream& compute, std::int64_t micro) {
  under_way_ = true;
  for (const FlatRange& range : plan_.ranges()) {
    backend_for(compute.device())
        .cast(compute, {.count = range.count(),
                        .from_type = range.type,
                        .to_type = DType::f32,
                        .from = arena_.at(range.begin),
                        .to = sums(range.begin),
                        .write = micro == 0 ? Write::overwrite : Write::accumulate});
  }
}

void RunningSums::finish(Stream& compute, const Bucket& bucket) {
  backend_for(compute.device())
      .cast(compute, {.count = bucket.count(),
                      .from_type = DType::f32,
                      .to_type = bucket.type,
                      .from = sums(bucket.begin),
                      .to = arena_.at(bucket.begin),
                      .write = Write::accumulate});
}

}  // namespace lockstep
