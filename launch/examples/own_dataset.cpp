// SPDX-License-Identifier: Apache-2.0
//
// A dataset and a network of your own, trained on CPUs: mpirun -np 2 own_dataset
#include "core/random.h"
#include "data/sets/subset.h"
#include "launch/train/job_end.h"
#include "launch/train/trainer.h"

using namespace lockstep;

// Noisy images of horizontal, vertical or diagonal stripes. The class is their direction.
class Stripes final : public Dataset {
 public:
  std::int64_t size() const override { return 4096; }
  ImageShape image_shape() const override { return {.height = 16, .width = 16, .channels = 1}; }
  std::int64_t classes() const override { return 3; }
  // Many threads call it, in any order: the image depends only on the index.
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    const auto label = static_cast<std::int32_t>(index % 3);
    const Random random(1, static_cast<std::uint64_t>(index));
    for (std::size_t i = 0; i < image.size(); ++i) {
      const std::size_t across = label == 0 ? i / 16 : label == 1 ? i % 16 : i / 16 + i % 16;
      image[i] = static_cast<std::uint8_t>(across / 4 % 2 * 100 + random.bits(i) % 156);
    }
    return label;
  }
};

int train(World& world) {
  const auto train_set = side_of(std::make_unique<Stripes>(), Split::train, 0.2);
  const auto test_set = side_of(std::make_unique<Stripes>(), Split::test, 0.2);
  Graph graph({.batch = 16, .height = 16, .width = 16, .channels = 1, .classes = 3});
  const Value x = graph.relu(graph.convolution(graph.input(), {.channels = 8, .kernel = 3}, "conv"));
  graph.classify(graph.linear(graph.pooling(x, {.kernel = 2, .stride = 2}), {.features = 3}, "fc"));
  Network network(graph, {});
  const std::unique_ptr<Communicator> communicator = world.communicator();
  GradientBuckets buckets(network.parameters(), *communicator, {});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Shard shard{.rank = world.rank(), .size = world.size()};
  BatchLoader train_loader(*train_set, shard, {.batch = 16});
  BatchLoader test_loader(*test_set, shard, {.batch = 16, .tail = Tail::pad});
  Trainer trainer({network, buckets, *optimizer, train_loader, test_loader, *communicator}, {.base = 0.02},
                  {.epochs = 3});
  return run_or_abort(world, [&] {  // a failed rank ends here, before it frees what its peers use
    trainer.fit();
    const Evaluation result = trainer.evaluate();
    if (world.rank() == 0) fmt::print("test accuracy {:.2f} %\n", 100 * result.accuracy);
    return exit_code::done;
  });
}

int main() {
  return run_job([](World& world) { return train(world); });
}
