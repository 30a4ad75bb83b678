// SPDX-License-Identifier: Apache-2.0
//
// The sum over ranks, element by element, in the type of the gradients, or in fp32 if rounding the partial
// sums of this many ranks would lose too much (comm/gradients/sum_type.h): a bucket is then widened into
// separate memory, which holds the largest bucket, sent as fp32 (twice the bytes), and rounded once.
#include <algorithm>

#include "comm/exchanges/exchanges.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

class DenseSum final : public GradientExchange {
 public:
  explicit DenseSum(const ExchangeContext& context)
      : plan_(context.plan), arena_(context.arena), communicator_(context.communicator) {
    std::int64_t largest = 0;
    for (const Bucket& bucket : plan_.buckets()) {
      if (dense_type(context.sum_type, bucket.type, communicator_) != bucket.type)
        largest = std::max(largest, bucket.count());
    }
    if (largest > 0) wide_ = communicator_.allocate(static_cast<std::size_t>(largest) * sizeof(float));
  }

  void enqueue(std::size_t index) override {
    const Bucket& bucket = plan_.buckets()[index];
    void* const gradients = arena_.at(bucket.begin);
    const bool widens = bucket.type != DType::f32 && wide_.bytes() > 0;
    const DType type = widens ? DType::f32 : bucket.type;
    void* const summed = widens ? wide_.data() : gradients;
    if (widens) cast(bucket, gradients, bucket.type, summed, type);
    communicator_.all_reduce(summed, static_cast<std::size_t>(bucket.count()), type, ReduceOp::sum);
    if (widens) cast(bucket, summed, type, gradients, bucket.type);
  }
  bool same_on_every_rank() const override { return true; }
  std::size_t memory_bytes() const override { return wide_.bytes(); }

 private:
  void cast(const Bucket& bucket, const void* from, DType from_type, void* to, DType to_type) {
    Stream& stream = communicator_.stream();
    backend_for(stream.device())
        .cast(stream,
              {.count = bucket.count(), .from_type = from_type, .to_type = to_type, .from = from, .to = to});
  }

  const BucketPlan& plan_;
  const GradientArena& arena_;
  Communicator& communicator_;
  Buffer wide_;  // f32; empty: no bucket needs it
};

}  // namespace

constinit const ExchangeKind kDenseSum = {
    .name = "none",
    .meaning = "summed and sent without compression",
    .options = {},
    .make = [](const ExchangeContext& context) -> std::unique_ptr<GradientExchange> {
      return std::make_unique<DenseSum>(context);
    }};

}  // namespace lockstep
