// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/gpus/gpu_runs.h"

#include "models/networks/networks.h"
#include "models/work.h"

namespace lockstep {
namespace {

// A test compares the rows with the files.
constexpr GpuRun kRuns[] = {
    {"h200", "resnet50", 224, 1000, Precision::fp16, 256, 8305.2, "gpu_speed.json",
     "/comparisons/resnet50 fp16/samples_per_second"},
    {"h200", "resnet50", 224, 1000, Precision::bf16, 256, 7988.4, "gpu_second.json",
     "/comparisons/resnet50 bf16/samples_per_second"},
    {"h200", "resnet18", 32, 10, Precision::fp16, 128, 59372.2, "gpu_speed.json",
     "/comparisons/resnet18, batch 128 fp16/samples_per_second"},
    {"h200", "resnet18", 32, 10, Precision::fp16, 512, 95505.4, "gpu_speed.json",
     "/comparisons/resnet18 fp16/samples_per_second"},
    {"h200", "resnet18", 32, 10, Precision::bf16, 512, 94197.5, "gpu_second.json",
     "/comparisons/resnet18 bf16/samples_per_second"},
    {"h200", "resnet18", 224, 10, Precision::fp32, 1, 297.9, "gpu_fine_tuning.json",
     "/rows/0/samples_per_second", 216.8},
    {"h200", "resnet18", 224, 10, Precision::fp32, 16, 1646.8, "gpu_fine_tuning.json",
     "/rows/1/samples_per_second", 453.9},
    {"h200", "resnet18", 224, 10, Precision::fp32, 32, 2132.2, "gpu_fine_tuning.json",
     "/rows/2/samples_per_second", 507.5},
    {"h200", "resnet18", 224, 10, Precision::fp32, 512, 3260.3, "gpu_fine_tuning.json",
     "/rows/3/samples_per_second", 602.5},
    {"h200", "resnet18", 224, 10, Precision::fp16, 512, 24747.4, "gpu_fine_tuning.json",
     "/rows/4/samples_per_second", 635.1},
};

}  // namespace

std::span<const GpuRun> gpu_runs() { return kRuns; }

Graph graph_of(const GpuRun& run) {
  Graph graph(
      {.batch = run.batch, .height = run.side, .width = run.side, .channels = 3, .classes = run.classes});
  build_network(graph, {.name = std::string(run.network)});
  return graph;
}

std::vector<GpuRun> find_runs(std::string_view gpu, const std::string& network, const Graph& graph,
                              Precision precision) {
  const GraphInput& input = graph.input_shape();
  const std::int64_t flops = training_flops(graph) / input.batch;
  std::vector<GpuRun> found;
  for (const GpuRun& run : kRuns) {
    if (run.gpu != gpu || run.network != network || run.precision != precision) continue;
    if (run.side != input.height || run.side != input.width) continue;
    if (training_flops(graph_of(run)) / run.batch == flops) found.push_back(run);
  }
  return found;
}

}  // namespace lockstep
