// SPDX-License-Identifier: Apache-2.0
//
// Batch norm that is synchronised over GPUs, in eager and in replayed steps: ranks are threads with a device
// each.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "comm/communicator_gather.h"
#include "comm/nccl/communicator.h"
#include "launch/trainer.h"
#include "models/network_state.h"
#include "tests/comm/thread_ranks.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/distance.h"
#include "tests/launch/grays.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGlobalBatch = 12, kSide = 4, kSteps = 5;

using State = std::map<std::string, std::vector<float>>;

// With a residual and without, on channels that are packed and that are not.
Graph graph_of(std::int64_t batch) {
  Graph graph({.batch = batch, .height = kSide, .width = kSide, .channels = 1, .classes = 4});
  const Value a =
      graph.batch_norm(graph.convolution(graph.input(), {.channels = 8, .kernel = 3, .padding = 1}, "conv1"),
                       {.activation = Activation::relu}, "bn1");
  const Value b = graph.batch_norm(graph.convolution(a, {.channels = 8, .kernel = 3, .padding = 1}, "conv2"),
                                   a, {.activation = Activation::relu}, "bn2");
  const Value c = graph.batch_norm(graph.convolution(b, {.channels = 5, .kernel = 1}, "conv3"), {}, "bn3");
  graph.classify(graph.linear(c, {.features = 4}, "fc"));
  return graph;
}

State train(Communicator& host, Device device, bool synchronised, bool record) {
  const Grays dataset({kSide, kSide, 1}, kGlobalBatch * kSteps);
  std::unique_ptr<Communicator> device_communicators[2];
  const auto connect = [&]() -> std::unique_ptr<Communicator> {
    if (device.kind == DeviceKind::cpu) return make_self_communicator();
    return std::make_unique<NcclCommunicator>(device, host, DeviceCommunicatorOptions{},
                                              [](const std::string& reason) { ADD_FAILURE() << reason; });
  };
  for (auto& communicator : device_communicators) communicator = connect();
  Communicator& gradients = *device_communicators[0];
  CommunicatorGather across(*device_communicators[1]);

  const std::int64_t batch = kGlobalBatch / host.size();
  KernelChoices first;
  Network network(graph_of(batch),
                  {.device = device, .batch_norm_ranks = synchronised ? host.size() : 1, .choices = &first});
  GradientBuckets buckets(network.parameters(), gradients, {});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Shard shard{.rank = host.rank(), .size = host.size()};
  BatchLoader train_loader(dataset, shard, {.batch = batch, .device = device});
  BatchLoader test_loader(dataset, shard, {.batch = batch, .tail = Tail::pad, .device = device});
  Trainer trainer({.network = network,
                   .buckets = buckets,
                   .optimizer = *optimizer,
                   .train = train_loader,
                   .test = test_loader,
                   .communicator = gradients,
                   .across = synchronised ? &across : nullptr},
                  {.base = 0.05}, {.record_steps = record});
  for (std::int64_t step = 0; step < kSteps; ++step) trainer.step();
  trainer.take_account();  // when the device is done
  State state;
  StateReader reader(device);
  network.visit_state(reader);  // of two statistics by one name, those that training moves come last
  for (const auto& tensor : reader.copy().tensors) state[tensor.name] = tensor.values;
  return state;
}

State train_on_gpus(int ranks, bool synchronised, bool record) {
  State state;
  run_thread_ranks(ranks, [&](Communicator& host) {
    const State mine = train(host, {.kind = DeviceKind::cuda, .index = host.rank()}, synchronised, record);
    if (host.rank() == 0) state = mine;
  });
  return state;
}

double farthest(const State& a, const State& b) {
  double most = 0;
  for (const auto& [name, values] : b) most = std::max(most, distance(a.at(name), values));
  return most;
}

TEST(SyncBatchNorm, OfGpusIsThatOfOneLargeBatch) {
  const State whole = train(*make_self_communicator(), {}, false, false);  // on the CPU
  for (const int ranks : {2, 3}) {
    const State eager = train_on_gpus(ranks, true, false);
    EXPECT_LT(farthest(eager, whole), 1e-5) << ranks << " ranks";
    EXPECT_EQ(train_on_gpus(ranks, true, true), eager) << "replayed, on " << ranks << " ranks";
  }
  const State two = train_on_gpus(2, true, false);
  {
    const emulator::HeldBack held;
    EXPECT_EQ(train_on_gpus(2, true, false), two) << "in the latest order there is";
  }
  EXPECT_GT(farthest(train_on_gpus(2, false, false), whole), 1e-3)
      << "each for itself they train something else";
}

}  // namespace
}  // namespace lockstep
