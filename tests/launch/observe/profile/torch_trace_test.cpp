// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/torch_trace.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/observe/profile/layer_profile.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::int64_t kLayerNs = 1'000'000;

Graph graph_of(const std::string& network, const std::string& frozen) {
  Graph graph({.batch = 4, .height = 12, .width = 12, .channels = 1, .classes = 3});
  build_network(graph, {.name = network});
  if (!frozen.empty()) graph.freeze(frozen);
  return graph;
}

class TorchTrace : public testing::Test {
 protected:
  explicit TorchTrace(const std::string& network = "cnn", Recompute recompute = Recompute::nothing,
                      const std::string& frozen = "")
      : graph_(graph_of(network, frozen)),
        network_(graph_, {.mean = {0.5}, .deviation = {0.5}, .recompute = recompute}) {}

  // The layers in a micro-batch's order, 1 ms each.
  std::vector<LayerRun> layers_of_a_step(std::int64_t begin_ns) const {
    const LayerFacts facts(graph_, network_);
    std::vector<LayerRun> runs;
    for (std::size_t node = 0; node < facts.nodes(); ++node) {
      const bool goes_backward = network_.nodes()[node].goes_backward;
      for (const Direction direction : kDirections)
        if (facts.time(node, direction) >= 0 && (goes_backward || direction == Direction::forward))
          runs.push_back({static_cast<std::uint32_t>(node), direction});
    }
    std::ranges::stable_sort(runs, {},
                             [&](const LayerRun& run) { return facts.time(run.node, run.direction); });
    for (LayerRun& run : runs) {
      run.begin_ns = begin_ns;
      run.end_ns = begin_ns += kLayerNs;
    }
    return runs;
  }

  const Network& network() const { return network_; }

  json trace(const std::vector<LayerRun>& layers) const {
    const LayerFacts facts(graph_, network_);
    return json::parse(torch_trace(head_, timeline_, layers, 0, facts, {.from_ns = 100}));
  }

  static std::vector<json> events(const json& trace, const std::string& member, const std::string& value) {
    std::vector<json> found;
    for (const json& event : trace.at("traceEvents"))
      if (event.value(member, "") == value) found.push_back(event);
    return found;
  }

  Graph graph_;
  Network network_;
  Timeline timeline_;
  TraceHead head_{.host = "here", .process = 4321, .rank = 1, .ranks = 12};
};

TEST_F(TorchTrace, CpuTraceHasStepsAndLayersWithShapesAndSourceLines) {
  timeline_.record({.name = "step",
                    .track = Track::step,
                    .index = 6,
                    .begin_ns = 1'100,
                    .end_ns = 1'100 + 100 * kLayerNs});
  const json trace = this->trace(layers_of_a_step(2'000));
  EXPECT_EQ(trace.at("distributedInfo"), json::parse(R"({"backend": "mpi", "rank": 1, "world_size": 12})"));
  const json step = events(trace, "name", "ProfilerStep#7").at(0);
  EXPECT_EQ(step.at("ts"), 1);
  EXPECT_EQ(step.at("dur"), 100'000);
  const json layer = events(trace, "name", "convolution forward").at(1);
  EXPECT_EQ(layer.at("tid"), step.at("tid"));
  const json& arguments = layer.at("args");
  EXPECT_EQ(arguments.at("layer"), "conv2");
  EXPECT_EQ(arguments.at("Input Dims"), json::parse("[[4, 32, 6, 6], [64, 32, 3, 3]]"));
  EXPECT_EQ(arguments.at("Input type"), json::parse(R"(["float", "float"])"));
  EXPECT_TRUE(arguments.at("place").get<std::string>().starts_with("models/networks/networks.cpp:"))
      << arguments;
  const json gradient = events(trace, "name", "convolution gradient of weights").at(0);
  EXPECT_EQ(gradient.at("args").at("Input Dims"),
            json::parse("[[4, 64, 6, 6], [4, 32, 6, 6], [64, 32, 3, 3]]"));
}

struct TracedNetwork {
  const char* name;
  Recompute recompute = Recompute::nothing;
  const char* frozen = "";

  friend void PrintTo(const TracedNetwork& traced, std::ostream* out) {
    *out << traced.name << (traced.recompute == Recompute::nothing ? "" : " recomputed ") << traced.frozen;
  }
};
class TorchTracePerNetwork : public TorchTrace, public testing::WithParamInterface<TracedNetwork> {
 protected:
  TorchTracePerNetwork() : TorchTrace(GetParam().name, GetParam().recompute, GetParam().frozen) {}
};
INSTANTIATE_TEST_SUITE_P(Networks, TorchTracePerNetwork,
                         testing::Values(TracedNetwork{"cnn"},
                                         TracedNetwork{"cnn", Recompute::nothing, "conv1"},
                                         TracedNetwork{"resnet20"},
                                         TracedNetwork{"resnet20", Recompute::blocks}));

TEST_P(TorchTracePerNetwork, MemoryStaysWithinThePlan) {
  std::vector<LayerRun> layers = layers_of_a_step(0);
  const std::vector<LayerRun> second = layers_of_a_step(500 * kLayerNs);
  layers.insert(layers.end(), second.begin(), second.end());
  const json trace = this->trace(layers);
  std::map<std::int64_t, std::int64_t> alive;  // by address
  std::int64_t total = 0, most = 0;
  for (const json& event : events(trace, "name", "[memory]")) {
    const json& arguments = event.at("args");
    const std::int64_t address = arguments.at("Addr"), bytes = arguments.at("Bytes");
    total += bytes;
    most = std::max(most, total);
    EXPECT_EQ(arguments.at("Total Allocated"), total);
    if (bytes > 0) {
      EXPECT_TRUE(alive.emplace(address, bytes).second) << event;
    } else {
      EXPECT_EQ(alive.extract(address).mapped(), -bytes) << event;
    }
  }
  EXPECT_TRUE(alive.empty());
  EXPECT_EQ(total, 0);
  EXPECT_GT(most, 0);
  EXPECT_LE(static_cast<std::size_t>(most), network().memory().activations);
  const std::vector<json> counters = events(trace, "ph", "C");
  ASSERT_FALSE(counters.empty());
  EXPECT_EQ(counters.back().at("args").at("activations"), 0);
}

TEST_F(TorchTrace, GpuTraceHasPhasesAndSumsAsStreamKernels) {
  head_.rank = 1, head_.ranks = 2;
  head_.device = {.kind = DeviceKind::cuda, .index = 1};
  head_.devices = {{.name = "A"}, {.name = "B", .memory_bytes = 1 << 30, .compute_capability = 90}};
  head_.buckets = {{.begin = 0, .end = 1000}};
  constexpr std::int64_t kMicroseconds = 1000;
  for (std::int32_t step = 0; step < 2; ++step) {
    const std::int64_t begin = 100 + step * 1000 * kMicroseconds;
    const auto record = [&](const char* name, Track track, std::int64_t from, std::int64_t to) {
      timeline_.record({.name = name,
                        .track = track,
                        .index = step,
                        .begin_ns = begin + from * kMicroseconds,
                        .end_ns = begin + to * kMicroseconds});
    };
    timeline_.record(bucket_span(0, begin + 500 * kMicroseconds, begin + 800 * kMicroseconds));
    record("forward", Track::compute, 0, 300);
    record("backward", Track::compute, 300, 700);
    record("exchange", Track::compute, 700, 800);
    record("optimizer", Track::compute, 800, 900);
    record("step", Track::step, 0, 900);
  }
  const json trace = this->trace({});
  EXPECT_EQ(trace.at("distributedInfo").at("backend"), "nccl");
  EXPECT_EQ(trace.at("deviceProperties").at(1).at("name"), "B");
  EXPECT_EQ(trace.at("deviceProperties").at(1).at("computeMajor"), 9);
  std::map<std::string, std::vector<json>> kernels;
  for (const json& kernel : events(trace, "cat", "kernel")) {
    EXPECT_EQ(kernel.at("pid"), 1);
    EXPECT_EQ(kernel.at("args").at("stream"), kernel.at("tid"));
    kernels[kernel.at("name")].push_back(kernel);
  }
  ASSERT_EQ(kernels.size(), 4u);  // waits are not kernels
  const std::vector<json>& sums = kernels.at("ncclKernel_AllReduce");
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_NE(sums[0].at("tid"), kernels.at("forward")[0].at("tid"));
  const std::vector<json> launches = events(trace, "cat", "cuda_runtime");
  const std::vector<json> annotations = events(trace, "name", "nccl:all_reduce");
  for (std::size_t step = 0; step < 2; ++step) {
    const json& id = launches.at(step).at("args").at("correlation");
    EXPECT_EQ(id, step + 1);
    for (const auto& [name, of_name] : kernels)
      EXPECT_EQ(of_name.at(step).at("args").at("correlation"), id) << name;
    EXPECT_EQ(annotations.at(step).at("args").at("External id"), sums[step].at("args").at("External id"));
    EXPECT_EQ(annotations.at(step).at("args").at("Input Dims"), json::parse("[[1000]]"));
  }
}

TEST_F(TorchTrace, FileNamesSortByRank) {
  EXPECT_EQ(torch_trace_name(head_, 1712), "here_01.1712.pt.trace.json");
}

}  // namespace
}  // namespace lockstep
