// SPDX-License-Identifier: Apache-2.0
//
// `lockstep tune` on two ranks, one of which has no memory for two trainings. Both must continue with one
// training at a time and measure as much as before.
#include <fstream>
#include <optional>

#include <sys/resource.h>
#include <unistd.h>

#include "core/error.h"
#include "launch/program/config/config.h"
#include "launch/program/tune/bench.h"
#include "launch/train/job_end.h"
#include "tests/launch/train/grays.h"

namespace lockstep {
namespace {

constexpr int kPairs = 2;
constexpr std::size_t kBlocks = 2 * kPairs + 1;

// Most of its memory is activations for backward.
void deep(Graph& graph, const NetworkChoice&) {
  Value x =
      graph.convolution(graph.input(), {.channels = 32, .kernel = 3, .padding = 1, .bias = false}, "conv");
  for (int layer = 0; layer < 16; ++layer)
    x = graph.batch_norm(x, {.activation = Activation::relu}, fmt::format("bn{}", layer));
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc"));
}

Registry registry_of_deep() {
  Registry registry;
  registry.networks.push_back({"deep", deep});
  registry.formats.push_back({"grays", [](const DatasetOptions&, Split) {
                                return std::make_unique<Grays>(ImageShape{8, 8, 1});
                              }});
  registry.presets = {{"deep", R"(
    model.name = "deep"
    data.format = "grays"
    data.path = "nowhere"
    data.loader_threads = 1
    train.batch = 768
    train.threads = 1
    kernels.choose = "direct"
  )"}};
  return registry;
}

// Limits the memory that the process may map to this many bytes more than now.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t bytes) {
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    CHECK(file >> pages, "no size of this process");
    CHECK(getrlimit(RLIMIT_AS, &before_) == 0);
    const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit limit{.rlim_cur = most, .rlim_max = before_.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_ = {};
};

void expect_measured(const TuneVisit& visit, double steps) {
  CHECK(visit.problem.empty(), "{}", visit.problem);
  CHECK(visit.blocks.size() == kBlocks, "{} blocks", visit.blocks.size());
  for (const BenchBlock& block : visit.blocks)
    CHECK(block.step_seconds > 0 && block.exposed_seconds <= block.step_seconds);
  CHECK(visit.steps == steps, "{} steps were trained, not {}", visit.steps, steps);
}

int measure(World& world) {
  const Registry registry = registry_of_deep();
  const std::unique_ptr<Communicator> control = world.communicator();
  const Config config = load_config("deep", {}, registry);
  Config candidate = config;
  candidate.gradients.overlap = false;
  return run_or_abort(world, [&] {
    std::size_t activations = 0;
    {
      TrainingSetup training(config, world, *control, {.registry = registry});
      activations = training.network().memory().activations;
    }
    constexpr std::size_t kRoomForThreads = std::size_t{48} << 20;
    CHECK(activations > 2 * kRoomForThreads, "{} bytes of activations", activations);
    {
      // Without calibrate(), as in a resumed search, the configuration is warmed up beside the candidate.
      TuneBench resumed(world, *control, config, registry);
      resumed.set_turns(0.3, 1);
      const auto blocks = static_cast<double>(kBlocks * static_cast<std::size_t>(resumed.block_steps()));
      expect_measured(resumed.visit(candidate, kPairs), 2 + blocks);
    }
    TuneBench bench(world, *control, config, registry);
    bench.calibrate(2);
    bench.set_turns(0.3, 1);  // long steps: one to warm up, then blocks of one, without settling
    const auto blocks = static_cast<double>(kBlocks * static_cast<std::size_t>(bench.block_steps()));
    expect_measured(bench.visit(candidate, kPairs), 1 + blocks);
    // Now one training after the other: each turn builds and warms up a training.
    std::optional<MemoryLimit> limit;
    if (world.rank() == 1) limit.emplace(kRoomForThreads);
    expect_measured(bench.visit(candidate, kPairs), kBlocks + blocks);
    expect_measured(bench.visit(config, kPairs), kBlocks + blocks);
    return 0;
  });
}

}  // namespace
}  // namespace lockstep

int main() { return lockstep::run_job(lockstep::measure); }
