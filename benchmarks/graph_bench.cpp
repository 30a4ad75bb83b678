// SPDX-License-Identifier: Apache-2.0
//
// Measures the time that replaying a recorded step saves. Runs the same training with steps enqueued kernel
// by kernel and with steps replayed as a CUDA graph, in alternating blocks. Host time is a step's time
// without waits for the device and for data. It reports times only if both networks end with the same bits.
#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/timeline.h"
#include "launch/train/trainer.h"
#include "models/state_copy.h"

namespace lockstep {
namespace {

struct Options : BenchOptions {
  int blocks = 7;
  int steps = 20;
};

// An independent training and its times.
class Run {
 public:
  Run(const Options& o, const Dataset& images, bool record)
      : bench_(o), training_(bench_, images, {.record_steps = record}) {}

  void block(int steps) {
    training_.trainer.take_host_account();
    const std::int64_t begin = now_ns();
    for (int i = 0; i < steps; ++i) training_.trainer.step();
    const StepAccount account = training_.trainer.take_host_account();  // without the wait for the last step
    training_.trainer.finish_steps();
    step_ms.push_back(1e3 * seconds_since(begin) / steps);
    host_us.push_back((account.total() - account[Phase::device_wait] - account[Phase::data_wait]) * 1e6 /
                      steps);
  }
  void forget_times() {
    step_ms.clear();
    host_us.clear();
  }
  StateCopy state() {
    StateReader reader(bench_.network->device());
    training_.trainer.visit_state(reader);
    return std::move(reader.copy());
  }

  std::vector<double> step_ms;
  std::vector<double> host_us;

 private:
  BenchNetwork bench_;
  BenchTraining training_;
};

int run(const Options& o) {
  if (o.where().kind == DeviceKind::cpu) {
    throw ConfigError("graph_bench needs a GPU: set --device cuda");
  }
  const RandomImages images(o, 8 * o.batch);
  Run eager(o, images, false);
  Run graph(o, images, true);
  for (Run* one : {&eager, &graph}) {  // both ways record, allocate and warm up
    one->block(std::max(o.steps, 6));
    one->forget_times();
  }
  for (int block = 0; block < o.blocks; ++block) {
    Run& first = block % 2 == 0 ? eager : graph;
    Run& second = block % 2 == 0 ? graph : eager;
    first.block(o.steps);
    second.block(o.steps);
  }
  CHECK(eager.state() == graph.state(), "training with the graph ends with different bits");
  const double ratio = median(eager.step_ms) / median(graph.step_ms);
  fmt::print(
      "{} {} batch {}: eager {:.3f} ms a step with {:.1f} us of the host, graph {:.3f} ms with {:.1f} us; "
      "{:.2f}x\n",
      o.model, o.precision, o.batch, median(eager.step_ms), median(eager.host_us), median(graph.step_ms),
      median(graph.host_us), ratio);
  write_json(o.json, {{"benchmark", "graph"},
                      {"machine", describe_machine()},
                      {"options", o.to_json()},
                      {"blocks", o.blocks},
                      {"steps_per_block", o.steps},
                      {"eager_ms", median(eager.step_ms)},
                      {"graph_ms", median(graph.step_ms)},
                      {"eager_host_us", median(eager.host_us)},
                      {"graph_host_us", median(graph.host_us)},
                      {"ratio", ratio}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  options.device = "cuda";
  lockstep::BenchProgram program(
      "graph_bench",
      "Times training steps on a GPU, enqueued kernel by kernel and replayed as a graph of the whole step, "
      "in alternating blocks. Reports medians.");
  options.add_flags(program);
  program.positive("--blocks", options.blocks, "pairs of blocks");
  program.positive("--steps", options.steps, "steps in a block");
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
