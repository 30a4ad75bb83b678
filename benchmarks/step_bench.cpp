// SPDX-License-Identifier: Apache-2.0
//
// How long is a training step? Forward, loss, backward and update of any network on random images, in one
// process, without the loop around it: the sum of its kernels. The loss must fall, or the time is not
// reported.
#include <cmath>
#include <cstdio>

#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/timeline.h"
#include "launch/step_results.h"
#include "models/work.h"

namespace lockstep {
namespace {

struct Options : BenchOptions {
  int steps = 10;
  int warmup = 3;
  std::string json;
};

struct StepTimes {
  std::vector<double> forward, backward, optimizer, total;  // seconds
  double first_loss = 0;
  double last_loss = 0;
};

StepTimes run_steps(const Options& options, Network& network, Optimizer& optimizer) {
  const RandomImages images(options, options.batch);
  const FixedBatch batch(images, options.batch, network.device());
  Stream stream(network.device(), StreamUse::compute);
  const Pass pass{.stream = stream,
                  .gradient_scale = 1.0f / static_cast<float>(options.batch),
                  .loss_scale = optimizer.loss_scale()};
  StepTimes times;
  for (int step = -options.warmup; step < options.steps; ++step) {
    const std::int64_t begin = now_ns();
    network.forward(batch.input(), pass);
    const double loss = network.loss(stream).loss;
    const std::int64_t forward = now_ns();
    network.backward(pass);
    stream.synchronize();
    const std::int64_t backward = now_ns();
    optimizer.check_gradients(stream);
    optimizer.step(stream, kBenchRate);
    stream.synchronize();
    const std::int64_t end = now_ns();
    if (step == -options.warmup) times.first_loss = loss;
    times.last_loss = loss;
    if (step < 0) continue;
    times.forward.push_back(static_cast<double>(forward - begin) * 1e-9);
    times.backward.push_back(static_cast<double>(backward - forward) * 1e-9);
    times.optimizer.push_back(static_cast<double>(end - backward) * 1e-9);
    times.total.push_back(static_cast<double>(end - begin) * 1e-9);
  }
  return times;
}

// Seconds a step takes when the host runs ahead, as in training, and waits for no part of it.
double pipelined_seconds(const Options& options, Network& network, Optimizer& optimizer) {
  const RandomImages images(options, options.batch);
  const FixedBatch batch(images, options.batch, network.device());
  Stream stream(network.device(), StreamUse::compute);
  const Pass pass{.stream = stream,
                  .gradient_scale = 1.0f / static_cast<float>(options.batch),
                  .loss_scale = optimizer.loss_scale()};
  StepResults results(network.device(), 1);
  const std::int64_t begin = now_ns();
  for (int step = 0; step < options.steps; ++step) {
    network.forward(batch.input(), pass);
    network.copy_loss(stream, results.loss(0));
    network.backward(pass);
    optimizer.check_gradients(stream);
    optimizer.step(stream, kBenchRate);
    results.copy_control(stream, optimizer.control());
    results.enqueued(stream);
    results.take();
  }
  while (results.take_last()) continue;
  return static_cast<double>(now_ns() - begin) * 1e-9 / options.steps;
}

// What the libraries take for themselves, code and threads' stacks included: the process after a step of a
// network whose tensors are next to nothing.
std::size_t baseline_bytes(int threads) {
  Options tiny;
  tiny.model = "cnn";
  tiny.batch = 1;
  tiny.image = 8;
  tiny.threads = threads;
  tiny.kernels = "direct";
  tiny.steps = 1;
  BenchNetwork bench(tiny);
  run_steps(tiny, *bench.network, *bench.optimizer);
  return resident_memory().now;
}

int run(const Options& o) {
  const std::size_t baseline = baseline_bytes(o.threads);
  BenchNetwork bench(o);
  const StepTimes times = run_steps(o, *bench.network, *bench.optimizer);
  if (!std::isfinite(times.last_loss) || times.last_loss >= times.first_loss) {
    throw Error(exit_code::failed, fmt::format("the loss went from {} to {}: these steps do not train",
                                               times.first_loss, times.last_loss));
  }

  const double seconds = o.where().kind == DeviceKind::cpu
                             ? median(times.total)
                             : pipelined_seconds(o, *bench.network, *bench.optimizer);
  const double gflop = static_cast<double>(training_flops(bench.graph)) * 1e-9;
  const std::size_t planned = bench.planned_bytes();
  const ResidentMemory resident = resident_memory();
  // Afterwards: it takes memory of its own.
  const double peak = backend_for(o.where()).measure_peak().gigaflops;
  fmt::print("{} batch {} {}x{}x{} {} {} threads, planned in {:.1f} s\n", o.model, o.batch, o.image, o.image,
             o.channels, o.precision, o.threads, bench.planning_seconds);
  fmt::print("  step {:.1f} ms (forward {:.1f}, backward {:.1f}, optimizer {:.2f})\n", seconds * 1e3,
             median(times.forward) * 1e3, median(times.backward) * 1e3, median(times.optimizer) * 1e3);
  fmt::print("  {:.1f} samples/s, {:.0f} GFLOP/s counted direct, peak {:.0f} GFLOP/s ({:.0f} %)\n",
             static_cast<double>(o.batch) / seconds, gflop / seconds, peak, 100 * gflop / seconds / peak);
  fmt::print("  planned {:.1f} MiB; resident peak {:.1f} MiB, of which the libraries' {:.1f} MiB\n",
             static_cast<double>(planned) / (1 << 20), static_cast<double>(resident.peak) / (1 << 20),
             static_cast<double>(baseline) / (1 << 20));
  write_json(o.json, {{"benchmark", "step"},
                      {"machine", describe_machine()},
                      {"options", o.to_json()},
                      {"steps", o.steps},
                      {"samples_per_second", static_cast<double>(o.batch) / seconds},
                      {"step_ms", seconds * 1e3},
                      {"forward_ms", median(times.forward) * 1e3},
                      {"backward_ms", median(times.backward) * 1e3},
                      {"optimizer_ms", median(times.optimizer) * 1e3},
                      {"gflops_counted_direct", gflop / seconds},
                      {"peak_gflops", peak},
                      {"planned_bytes", planned},
                      {"resident_baseline_bytes", baseline},
                      {"resident_peak_bytes", resident.peak}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  CLI::App app(
      "Times full training steps (forward, loss, backward, update) on random images; medians. GFLOP/s counts "
      "a "
      "direct convolution's operations, so Winograd may exceed the peak, which is measured on the same "
      "threads. "
      "Planned memory is what the plan announces: activations, parameters, statistics, gradients, optimizer.",
      "step_bench");
  options.add_flags(app);
  app.add_option("--steps", options.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps before")->check(CLI::NonNegativeNumber);
  app.add_option("--json", options.json, "write the result here, too");
  return lockstep::run_benchmark(app, argc, argv, [&] { return lockstep::run(options); });
}
