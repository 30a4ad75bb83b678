// SPDX-License-Identifier: Apache-2.0
//
// Synchronised batch norm over GPUs, in eager and in replayed steps. Ranks are threads with one device each.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "comm/communicator_gather.h"
#include "comm/nccl/communicator.h"
#include "launch/train/trainer.h"
#include "models/network_state.h"
#include "tests/comm/thread_ranks.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/distance.h"
#include "tests/launch/train/grays.h"
#include "tests/message_of.h"

namespace lockstep::sync_batch_norm_test {
namespace {

constexpr std::int64_t kGlobalBatch = 12, kSide = 4, kSteps = 6;

using State = std::map<std::string, std::vector<float>>;

// Batch norm with and without a residual, on packed and unpacked channels.
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

struct Trained {
  State state;
  Traffic traffic;                       // of the layers' communicator
  std::vector<CollectiveRecord> record;  // its log
};

struct Options {
  bool synchronised = true;
  bool record = false;  // record steps
  CallCheck check = CallCheck::plan;
  std::int64_t astray_in = -1;  // the step before which the layers of rank 1 make an additional call
};

Trained train(Communicator& host, Device device, const Options& options) {
  const Grays dataset({kSide, kSide, 1}, kGlobalBatch * kSteps);
  std::unique_ptr<Communicator> device_communicators[2];
  const auto connect = [&]() -> std::unique_ptr<Communicator> {
    if (device.kind == DeviceKind::cpu) return make_self_communicator();
    return std::make_unique<NcclCommunicator>(device, host, DeviceCommunicatorOptions{},
                                              [](const std::string& reason) { ADD_FAILURE() << reason; });
  };
  for (auto& communicator : device_communicators) communicator = connect();
  Communicator& gradients = *device_communicators[0];
  Communicator& layers = *device_communicators[1];
  layers.set_call_check(options.check);
  CommunicatorGather across(layers);

  const std::int64_t batch = kGlobalBatch / host.size();
  KernelChoices first;
  Network network(
      graph_of(batch),
      {.device = device, .batch_norm_ranks = options.synchronised ? host.size() : 1, .choices = &first});
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
                   .across = options.synchronised ? &across : nullptr},
                  {.base = 0.05}, {.record_steps = options.record});
  for (std::int64_t step = 0; step < kSteps; ++step) {
    if (step == options.astray_in && host.rank() == 1)
      layers.replayed({.collectives = {Collective{}}}, layers.stream());
    trainer.step();
  }
  trainer.take_account();  // waits for the device
  State state;
  StateReader reader(device);
  network.visit_state(reader);  // of two statistics with one name, the ones that training updates come last
  for (const auto& tensor : reader.copy().tensors) state[tensor.name] = tensor.values;
  return {.state = state, .traffic = layers.traffic(), .record = layers.log().read()};
}

Trained train_on_gpus(int ranks, const Options& options) {
  Trained trained;
  run_thread_ranks(ranks, [&](Communicator& host) {
    const Trained mine = train(host, {.kind = DeviceKind::cuda, .index = host.rank()}, options);
    if (host.rank() == 0) trained = mine;
  });
  return trained;
}

double farthest(const State& a, const State& b) {
  double most = 0;
  for (const auto& [name, values] : b) most = std::max(most, distance(a.at(name), values));
  return most;
}

// Expects one collective for each step, direction (forward and backward) and layer.
void expect_all_told(const Trained& trained) {
  constexpr std::size_t kAsked = 3 * 2 * kSteps;
  EXPECT_EQ(trained.traffic.operations, kAsked);
  EXPECT_EQ(trained.record.size(), kAsked);
  std::map<std::int32_t, std::size_t> of_layer;
  for (const CollectiveRecord& record : trained.record) ++of_layer[record.collective.purpose.layer];
  EXPECT_EQ(of_layer.size(), 3u);
  EXPECT_EQ(of_layer.count(-1), 0u);
}

TEST(SyncBatchNorm, OverGpusEqualsOneLargeBatch) {
  const State whole = train(*make_self_communicator(), {}, {.synchronised = false}).state;  // on the CPU
  for (const int ranks : {2, 3}) {
    const Trained eager = train_on_gpus(ranks, {});
    EXPECT_LT(farthest(eager.state, whole), 1e-5) << ranks << " ranks";
    const Trained replayed = train_on_gpus(ranks, {.record = true});
    EXPECT_EQ(replayed.state, eager.state) << "replayed on " << ranks << " ranks";
    expect_all_told(eager);
    expect_all_told(replayed);
    EXPECT_EQ(replayed.traffic.sent_bytes, eager.traffic.sent_bytes);
  }
  const State two = train_on_gpus(2, {}).state;
  {
    const emulator::HeldBack held;
    EXPECT_EQ(train_on_gpus(2, {}).state, two) << "with the latest possible order of work";
  }
  EXPECT_GT(farthest(train_on_gpus(2, {.synchronised = false}).state, whole), 1e-3)
      << "without synchronisation the result must differ";
}

// In the first step, in each recorded step, and, with stricter checks, in each replay.
TEST(SyncBatchNorm, EveryRankReportsDifferingCallsOfLayers) {
  for (const auto& [check, step] : {std::pair{CallCheck::plan, 0},
                                    {CallCheck::plan, 2},
                                    {CallCheck::step, 5},
                                    {CallCheck::collective, 2},
                                    {CallCheck::collective, 5}}) {
    const auto errors = try_thread_ranks(2, [&](Communicator& host) {
      train(host, {.kind = DeviceKind::cuda, .index = host.rank()},
            {.record = true, .check = check, .astray_in = step});
    });
    for (const std::string& error : errors) expect_parts(error, {"nccl", "rank 1", "barrier"});
  }
}

}  // namespace
}  // namespace lockstep::sync_batch_norm_test
