// SPDX-License-Identifier: Apache-2.0
//
// Ranks on GPUs start with equal state. Ranks are threads with one device each.
#include "launch/train/watch/replicas.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "comm/nccl/communicator.h"
#include "models/network.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep::replicas_test {
namespace {

std::vector<float> values_of(Network& network) {
  std::vector<float> values(network.values().size());
  Stream stream(network.device(), StreamUse::copy);
  stream.copy(values.data(), network.values().data(), values.size() * sizeof(float));
  stream.synchronize();
  return values;
}

// The device of rank 0 starts late: a rank that does not wait for the broadcast reads its old values.
TEST(BroadcastState, IsCompleteOnEveryGpuWhenItReturns) {
  Graph graph({.batch = 2, .height = 4, .width = 4, .channels = 1, .classes = 3});
  graph.classify(graph.linear(graph.input(), {.features = 3}, "fc"));
  run_thread_ranks(2, [&](Communicator& host) {
    const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
    NcclCommunicator nccl(device, host, {}, [](const std::string& reason) { ADD_FAILURE() << reason; });
    KernelChoices first;
    // Each rank has a different seed, as if it had read another file.
    Network network(graph,
                    {.device = device, .seed = static_cast<std::uint64_t>(host.rank()), .choices = &first});
    std::vector<float> expected = values_of(network);
    host.broadcast(expected.data(), expected.size(), DType::f32, 0);
    host.stream().synchronize();

    if (host.rank() == 0)
      nccl.stream().enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    broadcast_state(nccl, network);
    EXPECT_EQ(values_of(network), expected);
  });
}

}  // namespace
}  // namespace lockstep::replicas_test
