// SPDX-License-Identifier: Apache-2.0
//
// A gradient exchange of your own, on CPUs: ranks sum their shares of a bucket, then all gather the shares.
// The digest is that of Lockstep's own sum, which the argument `dense` selects: mpirun -np 3 own_exchange
#include "launch/train/digest.h"
#include "launch/train/job_end.h"
#include "launch/train/trainer.h"

using namespace lockstep;

class SumByShares final : public GradientExchange {
 public:
  explicit SumByShares(const ExchangeContext& context) : context_(context) {}
  static std::unique_ptr<GradientExchange> make(const ExchangeContext& context) {
    return std::make_unique<SumByShares>(context);
  }
  void enqueue(std::size_t index) override {  // collectives run later, in this order; a count may be 0
    Communicator& ranks = context_.communicator;
    const Bucket& bucket = context_.plan.buckets()[index];
    const ElementRange own = bucket.share_of(ranks.rank()), rest = context_.plan.rest_of(bucket);
    void* const share = context_.arena.at(own.begin);
    ranks.reduce_scatter(context_.arena.at(bucket.begin), share, own.count(), bucket.type, ReduceOp::sum);
    ranks.all_gather(share, context_.arena.at(bucket.begin), own.count(), bucket.type);
    ranks.all_reduce(context_.arena.at(rest.begin), rest.count(), bucket.type, ReduceOp::sum);
  }
  bool same_on_every_rank() const override { return true; }

 private:
  ExchangeContext context_;
};
constexpr ExchangeKind kSumByShares = {
    .name = "by_shares", .meaning = "sum by shares", .make = SumByShares::make};

int train_with(World& world, const ExchangeKind& kind) {
  const auto images = open_dataset({.format = "synthetic", .synthetic = {.classes = 5}}, Split::test);
  Graph graph({.batch = 32, .height = 32, .width = 32, .channels = 3, .classes = 5});
  graph.classify(graph.linear(graph.input(), {.features = 5}, "fc"));
  Network network(graph, {});
  const std::unique_ptr<Communicator> communicator = world.communicator();
  GradientBuckets buckets(network.parameters(), *communicator, {.exchange = {.kind = &kind}});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Shard shard{.rank = world.rank(), .size = world.size()};
  BatchLoader train(*images, shard, {.batch = 32}), test(*images, shard, {.batch = 32, .tail = Tail::pad});
  Trainer trainer({network, buckets, *optimizer, train, test, *communicator}, {.base = 0.001}, {});
  return run_or_abort(world, [&] {  // a failed rank ends here, before it frees what its peers use
    trainer.fit();
    if (world.rank() == 0) fmt::print("digest {}\n", digest(network, *optimizer));
    return exit_code::done;
  });
}

int main(int argc, char**) {
  return run_job([&](World& world) { return train_with(world, argc > 1 ? kDenseSum : kSumByShares); });
}
