// SPDX-License-Identifier: Apache-2.0
//
// An evaluation while the device still runs the last step. Ranks are threads with one device each.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "comm/nccl/communicator.h"
#include "launch/train/trainer.h"
#include "models/network_state.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"

namespace lockstep::evaluation_test {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kBatch = 4, kSide = 4;

// Every gradient overflows in half precision, so that every step is skipped. The device runs late after the
// exchange of gradients.
class LateOptimizer final : public Optimizer {
 public:
  explicit LateOptimizer(const TrainedMemory& memory)
      : Optimizer(memory, {}, {}, {.initial = 0x1p40f, .rule = {.interval = 1000}}) {}

 private:
  void update(Stream& stream, const Update&, std::size_t) override {
    stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  }
};

std::vector<std::vector<float>> state_of(Network& network) {
  std::vector<std::vector<float>> state;
  const StateSnapshot snapshot(network);
  for (const auto& entry : snapshot.entries()) state.push_back(entry.values);
  return state;
}

// A skipped step restores the running statistics after the optimizer. If the average did not wait for this,
// the restored values would overwrite the sum over ranks, and the division would give wrong statistics.
TEST(Evaluation, AveragesStatisticsAfterASkippedStepRestoredThem) {
  run_thread_ranks(kRanks, [](Communicator& host) {
    const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
    const ImageShape image{kSide, kSide, 1};
    const Grays dataset(image, kRanks * kBatch);
    NcclCommunicator nccl(device, host, {}, [](const std::string& reason) { ADD_FAILURE() << reason; });
    Graph graph({.batch = kBatch, .height = kSide, .width = kSide, .channels = 1, .classes = 4});
    const Value x = graph.batch_norm(graph.input(), {}, "bn");
    graph.classify(graph.linear(x, {.features = 4}, "fc"));
    KernelChoices first;
    Network network(graph, {.device = device, .precision = Precision::fp16, .choices = &first});
    GradientBuckets buckets(network.parameters(), nccl, {});
    LateOptimizer optimizer(trained_memory(network, buckets.gradients()));
    const Shard shard{.rank = host.rank(), .size = host.size()};
    BatchLoader train_loader(dataset, shard, {.batch = kBatch, .device = device});
    BatchLoader test_loader(dataset, shard, {.batch = kBatch, .tail = Tail::pad, .device = device});
    const auto before = state_of(network);  // the same on all ranks, and so their average
    {
      Trainer trainer({network, buckets, optimizer, train_loader, test_loader, nccl}, {.base = 0.02},
                      {.record_steps = false});
      trainer.step();
      trainer.evaluate();
    }
    EXPECT_EQ(state_of(network), before);
  });
}

}  // namespace
}  // namespace lockstep::evaluation_test
