// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/gpus/gpu_estimate.h"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/program/plan/gpus/gpu_runs.h"
#include "models/network.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// 1 TFLOPS in fp32, 2 GB at 100 GB/s.
constexpr GpuFigures kSmallGpu{.name = "small",
                               .capability = {8, 0},
                               .gigabytes = 2,
                               .gigabytes_per_second = 100,
                               .fp32_tflops = 1,
                               .tf32_tflops = 2,
                               .fp16_tflops = 4,
                               .watts = 100};

// One convolution of 1x1 from 16 to 32 channels on images of 8x8. Weights: 512. For each sample 2 x 512 x 64
// = 65,536 operations, 1,024 inputs and 2,048 outputs.
Graph small_graph(std::int64_t batch) {
  Graph graph({.batch = batch, .height = 8, .width = 8, .channels = 16, .classes = 10});
  graph.convolution(graph.input(), {.channels = 32, .kernel = 1, .bias = false}, "conv");
  return graph;
}

GpuWork small_work(std::size_t bytes) {
  return {.graph = small_graph,
          .batch = 128,
          .most_batch = 1000,
          .samples = 5000,
          .need = {.activations = bytes},
          .bytes_per_sample = 1e6};
}

Json result_file(std::string_view name) {
  std::ifstream file(source_folder() + "/benchmarks/results/" + std::string(name));
  return Json::parse(file);
}

const GpuFigures& h200() { return *find_gpus(std::vector<std::string>{"h200"}).front(); }

// Forward and the gradient of the weights each move (512 + 4 x 3,072) values; the image needs no gradient.
TEST(GpuEstimate, StepTakesTheLongerOfProductsAndMemory) {
  const Graph graph = small_graph(4);
  const double operations = 4 * 65'536, values = 512 + 4 * 3'072;
  const Interval fp32 = step_seconds(kSmallGpu, graph, Precision::fp32);
  EXPECT_DOUBLE_EQ(fp32.low, 2 * values * 4 / 100e9);
  EXPECT_NEAR(fp32.high, fp32.low / 0.42 + 2 * 31e-6, 1e-12);
  EXPECT_DOUBLE_EQ(step_seconds(kSmallGpu, graph, Precision::fp16).low, 2 * values * 2 / 100e9);
  GpuFigures fast_memory = kSmallGpu;
  fast_memory.gigabytes_per_second = 1000;
  EXPECT_DOUBLE_EQ(step_seconds(fast_memory, graph, Precision::fp32).low, 2 * operations / 1e12);
  EXPECT_DOUBLE_EQ(step_seconds(fast_memory, graph, Precision::tf32).low, 2 * operations / 2e12);
}

// 2 GB less 1.3 GB of context and libraries and 1/64: 668.75 MB. The workspace takes 256 MiB = 268,435,456
// bytes of them, so 400,314,544 bytes are left.
TEST(GpuEstimate, LargestBatchFillsTheMemory) {
  EXPECT_EQ(available_bytes(kSmallGpu), 668'750'000U);
  const GpuEstimate fits = estimate(kSmallGpu, small_work(300'000'000));
  EXPECT_TRUE(fits.fits());
  EXPECT_EQ(fits.needed, 568'435'456U);
  EXPECT_EQ(fits.largest_batch, 128 + 100);
  EXPECT_EQ(fits.batch, 128);
  const GpuEstimate too_large = estimate(kSmallGpu, small_work(450'000'000));
  EXPECT_FALSE(too_large.fits());
  EXPECT_EQ(too_large.largest_batch, 128 - 50);
  EXPECT_EQ(too_large.batch, 78) << "rates are for a batch that fits";
  EXPECT_EQ(estimate(kSmallGpu, small_work(100)).largest_batch, 128 + 400);
  GpuWork few = small_work(100);
  few.most_batch = 200;
  EXPECT_EQ(estimate(kSmallGpu, few).largest_batch, 200) << "the training set has no more samples";
  const GpuEstimate none = estimate(kSmallGpu, small_work(5'000'000'000));
  EXPECT_FALSE(none.fits());
  EXPECT_EQ(none.batch, 0);
  EXPECT_EQ(none.samples_per_second.high, 0);
}

TEST(GpuEstimate, RatesAndEnergyFollowFromTheStep) {
  const GpuEstimate row = estimate(kSmallGpu, small_work(1000));
  const Interval step = step_seconds(kSmallGpu, small_graph(128), Precision::fp32);
  EXPECT_DOUBLE_EQ(row.samples_per_second.low, 128 / step.high);
  EXPECT_DOUBLE_EQ(row.samples_per_second.high, 128 / step.low);
  EXPECT_DOUBLE_EQ(row.epoch_joules.low, 100 * 5000 * step.low / 128);
  EXPECT_DOUBLE_EQ(row.epoch_joules.high, 100 * 5000 * step.high / 128);
}

TEST(GpuEstimate, UnsupportedGpuAndPrecisionHaveNoEstimate) {
  GpuFigures old = kSmallGpu;
  old.capability = {7, 0};
  const GpuEstimate refused = estimate(old, small_work(1000));
  expect_parts(refused.refused, {"7.0"});
  EXPECT_FALSE(refused.fits());
  EXPECT_EQ(refused.samples_per_second.high, 0);
  GpuWork bf16 = small_work(1000);
  bf16.precision = Precision::bf16;
  expect_parts(estimate(kSmallGpu, bf16).refused, {"train.precision = bf16"});
}

TEST(GpuRuns, EqualTheirFiles) {
  for (const GpuRun& run : gpu_runs()) {
    const Json file = result_file(run.file);
    const Json& machine = file.at("machine").at("gpu");
    EXPECT_NE(machine.dump().find("NVIDIA H200,"), std::string::npos) << run.file;
    EXPECT_EQ(run.gpu, "h200");
    const double rate = file.at(Json::json_pointer(std::string(run.pointer)));
    EXPECT_NEAR(run.samples_per_second, rate, 0.051) << run.file << run.pointer;
    const Json& row = file.at(Json::json_pointer(std::string(run.pointer)).parent_pointer());
    EXPECT_NEAR(run.watts, row.value("watts", 0.0), 0.051) << run.file << run.pointer;
  }
}

// The step of each run is within the interval, and one run reaches its end: the constants are not too low.
TEST(GpuRuns, LieWithinTheEstimate) {
  double least = 1e9;
  for (const GpuRun& run : gpu_runs()) {
    const Interval step = step_seconds(h200(), graph_of(run), run.precision);
    const double seconds = static_cast<double>(run.batch) / run.samples_per_second;
    EXPECT_GT(seconds, step.low) << run.network << " " << run.batch;
    EXPECT_LT(seconds, step.high) << run.network << " " << run.batch;
    least = std::min(least, step.high / seconds);
  }
  EXPECT_LT(least, 1.02);
}

TEST(GpuRuns, AreFoundForTheSameNetworkOnly) {
  const GpuRun& run = gpu_runs().front();
  const auto found = [&](const std::string& network, const Graph& graph) {
    return find_runs("h200", network, graph, Precision::fp16).size();
  };
  EXPECT_EQ(found("resnet50", graph_of(run)), 1U);
  EXPECT_EQ(found("resnet18", graph_of(run)), 0U);
  EXPECT_EQ(find_runs("h100", "resnet50", graph_of(run), Precision::fp16).size(), 0U);
  EXPECT_EQ(found("resnet50", small_graph(4)), 0U);
  Graph frozen = graph_of(run);
  frozen.freeze("layer1");
  EXPECT_EQ(found("resnet50", frozen), 0U) << "fewer gradients";
}

// The largest batch is extrapolated from two plans.
TEST(GpuMemory, GrowsWithTheBatchAlongALine) {
  const auto bytes = [](std::int64_t batch) {
    GpuRun run = gpu_runs()[2];
    run.batch = batch;
    const MemoryPlan plan = Network::planned_memory(graph_of(run), {.precision = run.precision});
    return static_cast<double>(plan.activations - plan.workspace);
  };
  const double half = bytes(64), whole = bytes(128);
  EXPECT_NEAR(bytes(1024), whole + (whole - half) / 64 * (1024 - 128), 0.01 * bytes(1024));
}

// The plan of an H200 for the same training (resnet50, batch 256, fp16) is in the file.
TEST(GpuMemory, PlanOfTheCpuWithWorkspaceCoversThatOfTheGpu) {
  const Json file = result_file("gpu_program.json");
  Json planned, used;
  for (const Json& program : file.at("programs")) {
    if (program.at("part") != "memory" || program.at("program") != "resnet50") continue;
    planned = program.at("result").at("planned_bytes").at("device");
    used = program.at("result").at("epoch").at("device_memory");
  }
  const auto on_gpu = planned.at("activations").get<std::size_t>();
  const Graph graph = graph_of(gpu_runs().front());
  const MemoryPlan plan = Network::planned_memory(graph, {.precision = Precision::fp16});
  const std::size_t on_cpu = plan.activations - plan.workspace;
  EXPECT_NEAR(static_cast<double>(on_cpu), static_cast<double>(on_gpu), 0.1 * static_cast<double>(on_gpu));
  EXPECT_NEAR(static_cast<double>(plan.parameters), planned.at("parameters").get<double>(), 1e5);
  EXPECT_NEAR(static_cast<double>(plan.weight_copies), planned.at("copies").get<double>(), 1e5);
  EXPECT_NEAR(static_cast<double>(plan.statistics), planned.at("statistics").get<double>(), 1e5);
  const GpuEstimate row = estimate(h200(), {.graph = [&](std::int64_t) { return graph; },
                                            .precision = Precision::fp16,
                                            .batch = 256,
                                            .most_batch = 256,
                                            .samples = 1024,
                                            .need = {.activations = on_cpu}});
  EXPECT_GE(row.needed, on_gpu);
  const std::size_t others = used.at("at_start").get<std::size_t>() + used.at("libraries").get<std::size_t>();
  EXPECT_GE(static_cast<std::size_t>(h200().gigabytes * 1e9) - available_bytes(h200()), others)
      << "the reserve covers the context and the libraries";
}

}  // namespace
}  // namespace lockstep
