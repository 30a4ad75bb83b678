// SPDX-License-Identifier: Apache-2.0
//
// The sum over ranks, element by element, in the type of the gradients, or in fp32 if rounding the partial
// sums of this many ranks would lose too much (comm/gradients/sum_type.h): a bucket is then widened into
// separate memory, which holds the largest bucket, sent as fp32 (twice the bytes), and rounded once.
//
// The dense exchange gives every rank the whole sum. The sharded one gives each rank the sum of its share and
// of the elements that belong to all ranks; a rank's other gradients are then undefined.
#include <algorithm>

#include "comm/exchanges/exchanges.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

class SumExchange final : public GradientExchange {
 public:
  enum class Result { whole, share };
  SumExchange(const ExchangeContext& context, Result result)
      : plan_(context.plan), arena_(context.arena), communicator_(context.communicator), result_(result) {
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
    if (result_ == Result::whole)
      communicator_.all_reduce(summed, static_cast<std::size_t>(bucket.count()), type, ReduceOp::sum);
    else
      sum_shares(bucket, static_cast<std::byte*>(summed), type);
    if (widens) cast(bucket, summed, type, gradients, bucket.type);
  }
  bool same_on_every_rank() const override { return result_ == Result::whole; }
  std::size_t memory_bytes() const override { return wide_.bytes(); }

 private:
  void sum_shares(const Bucket& bucket, std::byte* sums, DType type) {
    const auto at = [&](std::int64_t element) {
      return sums + static_cast<std::size_t>(element - bucket.begin) * size_of(type);
    };
    const ElementRange rest = plan_.rest_of(bucket);
    if (rest.count() > 0)
      communicator_.all_reduce(at(rest.begin), static_cast<std::size_t>(rest.count()), type, ReduceOp::sum);
    if (bucket.share == 0) return;
    communicator_.reduce_scatter(sums, at(bucket.share_of(communicator_.rank()).begin),
                                 static_cast<std::size_t>(bucket.share), type, ReduceOp::sum);
  }
  void cast(const Bucket& bucket, const void* from, DType from_type, void* to, DType to_type) {
    Stream& stream = communicator_.stream();
    backend_for(stream.device())
        .cast(stream,
              {.count = bucket.count(), .from_type = from_type, .to_type = to_type, .from = from, .to = to});
  }

  const BucketPlan& plan_;
  const GradientArena& arena_;
  Communicator& communicator_;
  Result result_;
  Buffer wide_;  // f32; empty: no bucket needs it
};

}  // namespace

constinit const ExchangeKind kDenseSum = {
    .name = "none",
    .meaning = "summed and sent without compression",
    .options = {},
    .make = [](const ExchangeContext& context) -> std::unique_ptr<GradientExchange> {
      return std::make_unique<SumExchange>(context, SumExchange::Result::whole);
    }};

constinit const ExchangeKind kShardedExchange = {
    .name = "sharded",
    .meaning = "each rank gets the sums of its share",
    .options = {},
    .make = [](const ExchangeContext& context) -> std::unique_ptr<GradientExchange> {
      return std::make_unique<SumExchange>(context, SumExchange::Result::share);
    }};

}  // namespace lockstep
