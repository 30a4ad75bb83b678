// SPDX-License-Identifier: Apache-2.0
//
// The sum over ranks, element by element, in the type of the gradients.
#include "comm/exchanges/exchanges.h"

namespace lockstep {
namespace {

class DenseSum final : public GradientExchange {
 public:
  explicit DenseSum(const ExchangeContext& context)
      : plan_(context.plan), arena_(context.arena), communicator_(context.communicator) {}

  void enqueue(std::size_t index) override {
    const Bucket& bucket = plan_.buckets()[index];
    communicator_.all_reduce(arena_.at(bucket.begin), static_cast<std::size_t>(bucket.count()), bucket.type,
                             ReduceOp::sum);
  }
  bool same_on_every_rank() const override { return true; }

 private:
  const BucketPlan& plan_;
  const GradientArena& arena_;
  Communicator& communicator_;
};

}  // namespace

constinit const ExchangeKind kDenseSum = {
    .name = "none",
    .meaning = "summed and sent as they are",
    .options = {},
    .make = [](const ExchangeContext& context) -> std::unique_ptr<GradientExchange> {
      return std::make_unique<DenseSum>(context);
    }};

}  // namespace lockstep
