// SPDX-License-Identifier: Apache-2.0
//
// A training job whose rank 1 cannot read its data any more after some steps. Also a program that trains its
// own network with the library.
#include <atomic>

#include "core/error.h"
#include "launch/job_end.h"
#include "launch/trainer.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

class BreakingDataset final : public Dataset {
 public:
  explicit BreakingDataset(bool breaks) : breaks_(breaks) {}
  std::int64_t size() const override { return 4096; }
  ImageShape image_shape() const override { return {8, 8, 1}; }
  std::int64_t classes() const override { return 4; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    if (breaks_ && ++reads_ > 200) throw DataError("sample is broken");
    std::fill(image.begin(), image.end(), static_cast<std::uint8_t>(index));
    return static_cast<std::int32_t>(index % 4);
  }

 private:
  bool breaks_;
  mutable std::atomic<int> reads_ = 0;
};

int train(World& world) {
  Graph graph({.batch = 8, .height = 8, .width = 8, .channels = 1, .classes = 4});
  mlp(graph);
  const BreakingDataset dataset(world.rank() == 1);
  const BreakingDataset whole(false);
  const Shard shard{.rank = world.rank(), .size = world.size()};
  const std::unique_ptr<Communicator> communicator = world.communicator();
  return run_or_abort(world, [&] {
    Network network(graph, {});
    GradientBuckets buckets(network.parameters(), *communicator, {});
    const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
    BatchLoader train_loader(dataset, shard, {.batch = 8});
    BatchLoader test_loader(whole, shard, {.batch = 8, .tail = Tail::pad});
    Trainer trainer({network, buckets, *optimizer, train_loader, test_loader, *communicator}, {.base = 0.01},
                    {.epochs = 100});
    Report report({.speaks = false});
    return run_or_abort(world, [&] {
      trainer.fit(report);
      return 0;
    });
  });
}

}  // namespace
}  // namespace lockstep

int main() {
  lockstep::World world = lockstep::World::join();
  return lockstep::train(world);
}
