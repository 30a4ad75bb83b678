// SPDX-License-Identifier: Apache-2.0
//
// A test exchange that gives each rank a different result, as a sharded optimizer needs: the sums of the
// rank's own shares and of the elements that belong to no share. Other elements keep the local gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/gradients/gradient_exchange.h"

namespace lockstep {

class KeepsItsShare final : public GradientExchange {
 public:
  explicit KeepsItsShare(const ExchangeContext& context)
      : plan_(context.plan),
        arena_(context.arena),
        communicator_(context.communicator),
        step_(static_cast<float>(context.choice.option("first_step"))) {}

  void enqueue(std::size_t index) override {
    const Bucket& bucket = plan_.buckets()[index];
    communicator_.reduce_scatter(arena_.at(bucket.begin),
                                 arena_.at(bucket.share_of(communicator_.rank()).begin),
                                 static_cast<std::size_t>(bucket.share), bucket.type, ReduceOp::sum);
    const ElementRange rest = plan_.rest_of(bucket);
    if (rest.count() == 0) return;
    communicator_.all_reduce(arena_.at(rest.begin), static_cast<std::size_t>(rest.count()), bucket.type,
                             ReduceOp::sum);
  }
  bool same_on_every_rank() const override { return false; }
  // Runs on host memory only.
  void settle(Stream& compute, const std::int32_t* finite) override {
    if (compute.device().kind == DeviceKind::cpu && *finite != 0) step_ += 1;
  }
  std::vector<ExchangeState> state() override {
    return {{.name = "step",
             .scope = StateScope::replicated,
             .memory = {.data = &step_, .shape = {1}, .dtype = DType::f32}}};
  }
  std::size_t memory_bytes() const override { return sizeof(step_); }

 private:
  const BucketPlan& plan_;
  const GradientArena& arena_;
  Communicator& communicator_;
  float step_;
};

inline constexpr NumberOption kKeepsItsShareOptions[] = {
    {.name = "first_step", .initial = 0, .least = 0, .most = 100, .meaning = "where steps are counted from"}};

inline constexpr ExchangeKind kKeepsItsShare = {
    .name = "share",
    .meaning = "each rank keeps the sums of its shares",
    .options = kKeepsItsShareOptions,
    .make = [](const ExchangeContext& context) -> std::unique_ptr<GradientExchange> {
      return std::make_unique<KeepsItsShare>(context);
    }};

}  // namespace lockstep
