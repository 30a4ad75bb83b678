// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/micro_batch_sums.h"

#include "core/error.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

std::int64_t half_elements(const BucketPlan& plan) {
  return plan.gradient_type() == DType::f32 ? 0 : plan.ranges().front().end;
}

std::size_t wide_bytes(std::int64_t half) { return static_cast<std::size_t>(half) * sizeof(float); }

}  // namespace

MicroBatchSums::MicroBatchSums(const BucketPlan& plan, const GradientArena& arena, Communicator& communicator,
                               std::int64_t micro_batches)
    : plan_(plan),
      arena_(arena),
      communicator_(communicator),
      pending_(communicator.stream().device(), plan.elements(), micro_batches) {
  CHECK(make_up_a_subtree(micro_batches, communicator.size()),
        "{} micro-batches on each of {} ranks are not a subtree: the number of micro-batches must be a power "
        "of two",
        micro_batches, communicator.size());
  if (half_elements(plan) > 0) wide_ = communicator.allocate(wide_bytes(half_elements(plan)));
}

std::size_t MicroBatchSums::planned_bytes(std::int64_t elements, std::int64_t half,
                                          std::int64_t micro_batches) {
  return PendingSums::planned_bytes(elements, micro_batches) + wide_bytes(half);
}

float* MicroBatchSums::summed(DType type, std::int64_t begin) const {
  if (type == DType::f32) return static_cast<float*>(arena_.at(begin));
  return reinterpret_cast<float*>(wide_.data()) + begin;
}

void MicroBatchSums::widen(Stream& compute, DType type, const ElementRange& elements) {
  if (type == DType::f32) return;
  backend_for(compute.device())
      .cast(compute, {.count = elements.count(),
                      .from_type = type,
                      .to_type = DType::f32,
                      .from = arena_.at(elements.begin),
                      .to = summed(type, elements.begin)});
}

void MicroBatchSums::keep(Stream& compute, std::int64_t micro) {
  for (const FlatRange& range : plan_.ranges()) {
    const ElementRange elements{range.begin, range.end};
    widen(compute, range.type, elements);
    pending_.keep(compute, micro, elements, summed(range.type, range.begin));
  }
}

void MicroBatchSums::finish(Stream& compute, const Bucket& bucket) {
  const ElementRange elements{bucket.begin, bucket.end};
  widen(compute, bucket.type, elements);
  pending_.finish(compute, elements, summed(bucket.type, bucket.begin));
}

void MicroBatchSums::enqueue(std::size_t index) {
  const Bucket& bucket = plan_.buckets()[index];
  float* sums = summed(bucket.type, bucket.begin);
  communicator_.all_reduce(sums, static_cast<std::size_t>(bucket.count()), DType::f32, ReduceOp::sum);
  if (bucket.type == DType::f32) return;
  Stream& stream = communicator_.stream();
  backend_for(stream.device())
      .cast(stream, {.count = bucket.count(),
                     .from_type = DType::f32,
                     .to_type = bucket.type,
                     .from = sums,
                     .to = arena_.at(bucket.begin)});
}

}  // namespace lockstep
