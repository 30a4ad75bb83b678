// SPDX-License-Identifier: Apache-2.0
//
// A network and a dataset of the user's own, trained with the installed library.
#include <cstdio>

#include "comm/world.h"
#include "launch/trainer.h"

using namespace lockstep;

// The class is the image's brightness.
class Brightness final : public Dataset {
 public:
  std::int64_t size() const override { return 2048; }
  ImageShape image_shape() const override { return {8, 8, 1}; }
  std::int64_t classes() const override { return 4; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    const auto label = static_cast<std::int32_t>(index % 4);
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = static_cast<std::uint8_t>(60 * label + (i + index) % 20);
    return label;
  }
};

int main() {
  World world = World::join();
  Graph graph({.batch = 16, .height = 8, .width = 8, .channels = 1, .classes = 4});
  Value x =
      graph.convolution(graph.input(), {.channels = 8, .kernel = 3, .padding = 1, .bias = false}, "conv");
  x = graph.pooling(graph.batch_norm(x, {.activation = Activation::relu}, "bn"), {.kernel = 2, .stride = 2});
  graph.classify(graph.linear(x, {.features = 4}, "fc"));

  Network network(graph, {});
  const std::unique_ptr<Communicator> communicator = world.communicator();
  GradientBuckets buckets(network.parameters(), *communicator, {});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Brightness dataset;
  const Shard shard{.rank = world.rank(), .size = world.size()};
  BatchLoader train(dataset, shard, {.batch = 16});
  BatchLoader test(dataset, shard, {.batch = 16, .tail = Tail::pad});
  // Batch norm sees 16 samples of each rank: at a constant rate weights keep moving faster than its running
  // statistics follow, and evaluation, which uses those, swings. The rate ends at zero, so that they settle.
  constexpr int kSteps = 300;
  const Schedule schedule{.kind = ScheduleKind::cosine, .base = 0.05, .total_steps = kSteps};
  Trainer trainer({network, buckets, *optimizer, train, test, *communicator}, schedule, {});
  for (int step = 0; step < kSteps; ++step) trainer.step();
  const Evaluation result = trainer.evaluate();
  if (world.rank() == 0) std::printf("accuracy %.3f\n", result.accuracy);
  return result.accuracy > 0.9 ? 0 : 1;
}
