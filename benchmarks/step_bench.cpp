// SPDX-License-Identifier: Apache-2.0
//
// How long is a training step? Times forward, loss, backward and update of any network on random images, in
// one process, without the training loop: the sum of its kernels. On a GPU it times both steps enqueued
// kernel by kernel and steps replayed as a graph, as in training. It reports times only if the loss falls,
// and if on a GPU both ways end with the same digest.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/text/enum_words.h"
#include "core/text/units.h"
#include "core/timeline.h"
#include "launch/observe/account/account_json.h"
#include "launch/train/digest.h"
#include "launch/train/step/step_results.h"
#include "models/state_copy.h"
#include "models/work.h"

namespace lockstep {
namespace {

struct Options : BenchOptions {
  int steps = 10;
  int warmup = 3;
  bool no_peak = false;
};

struct StepTimes {
  std::vector<double> forward, backward, optimizer, total;  // seconds
  double first_loss = 0;                                    // mean of the batch
  double last_loss = 0;
};

double mean_of(const LossSums& sums) {
  return static_cast<double>(sums.loss) / static_cast<double>(sums.weight);
}

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
    const double loss = mean_of(network.loss(stream));
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
    times.forward.push_back(seconds_between(begin, forward));
    times.backward.push_back(seconds_between(forward, backward));
    times.optimizer.push_back(seconds_between(backward, end));
    times.total.push_back(seconds_between(begin, end));
  }
  return times;
}

enum class Steps { eager, recorded };

// Steps with the host running ahead, as in training, without waiting for parts of a step. Recorded steps have
// one recording per slot.
class PipelinedSteps {
 public:
  PipelinedSteps(const Options& options, BenchNetwork& bench, Steps steps)
      : network_(*bench.network),
        optimizer_(*bench.optimizer),
        steps_(steps),
        batch_(RandomImages(options, options.batch), options.batch, network_.device()),
        stream_(network_.device(), StreamUse::compute),
        results_(network_.device(), 1),
        gradient_scale_(1.0f / static_cast<float>(options.batch)) {}

  // Mean seconds of `count` steps; count must be even. None if the device cannot record a step; reason() then
  // returns the reason.
  std::optional<double> run(int count) {
    const std::int64_t begin = now_ns();
    for (int step = 0; step < count; ++step) {
      slot_ = StepSlot::of(step);
      if (step >= 2) keep(slot_);
      optimizer_.set_learning_rate(slot_, kBenchRate);
      Recording& recording = recordings_[slot_.index];
      if (steps_ == Steps::recorded && recording.empty()) {
        recording = stream_.record_work([this] { enqueue(); }, reason_);
        if (recording.empty()) return std::nullopt;
      }
      recording.empty() ? enqueue() : stream_.replay(recording);
      results_.enqueued(stream_, slot_);
    }
    for (int step = std::max(0, count - 2); step < count; ++step) keep(StepSlot::of(step));
    return seconds_since(begin) / count;
  }
  double last_loss() const { return last_loss_; }
  const std::string& reason() const { return reason_; }

 private:
  void enqueue() {
    const Pass pass{
        .stream = stream_, .gradient_scale = gradient_scale_, .loss_scale = optimizer_.loss_scale()};
    network_.forward(batch_.input(), pass);
    network_.copy_loss(stream_, results_.loss(slot_, 0));
    network_.backward(pass);
    optimizer_.check_gradients(stream_);
    optimizer_.step(stream_, slot_);
    results_.copy_control(stream_, slot_, optimizer_.control());
  }
  void keep(StepSlot slot) { last_loss_ = mean_of(results_.result(slot).losses[0]); }

  Network& network_;
  Optimizer& optimizer_;
  Steps steps_;
  FixedBatch batch_;
  Stream stream_;
  StepResults results_;
  float gradient_scale_;
  std::array<Recording, StepSlot::kCount> recordings_;
  StepSlot slot_;
  double last_loss_ = 0;
  std::string reason_;
};

// Memory of the libraries, including code and thread stacks: resident memory after a step of a tiny network.
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

void check_loss(double first, double last) {
  if (std::isfinite(last) && last < first) return;
  throw Error(exit_code::failed,
              fmt::format("the loss changed from {} to {}: these steps do not train", first, last));
}

// Mean seconds of a step on a GPU, and the digest after all steps.
struct GpuWay {
  double seconds = 0;
  std::string digest;
};
struct GpuSteps {
  GpuWay eager;
  std::optional<GpuWay> recorded;  // from the same initial state as eager

  double as_trained() const { return recorded ? recorded->seconds : eager.seconds; }
};

void visit_state(BenchNetwork& bench, StateVisitor& visitor) {
  bench.network->visit_state(visitor);
  bench.optimizer->visit_state(visitor);
}

std::optional<GpuSteps> gpu_steps(const Options& o, BenchNetwork& bench, double first_loss) {
  if (o.where().kind == DeviceKind::cpu) return std::nullopt;
  StateReader before(o.where());
  visit_state(bench, before);
  const auto run = [&](Steps way) -> std::optional<GpuWay> {
    StateWriter restore(o.where(), before.copy());
    visit_state(bench, restore);
    PipelinedSteps steps(o, bench, way);
    if (!steps.run(2)) {  // warm-up: first launches take longer
      fmt::print("steps are enqueued one by one: {}\n", steps.reason());
      return std::nullopt;
    }
    const std::optional<double> seconds = steps.run(o.steps + o.steps % 2);
    check_loss(first_loss, steps.last_loss());
    return GpuWay{.seconds = *seconds, .digest = digest(*bench.network, *bench.optimizer)};
  };
  GpuSteps steps{.eager = run(Steps::eager).value(), .recorded = run(Steps::recorded)};
  if (steps.recorded && steps.recorded->digest != steps.eager.digest) {
    throw Error(
        exit_code::failed,
        fmt::format("{} steps end with digest {} when they are enqueued and {} when they are replayed: "
                    "one of the two ways trains wrongly",
                    o.steps + o.steps % 2 + 2, steps.eager.digest, steps.recorded->digest));
  }
  return steps;
}

int run(const Options& o) {
  const std::size_t baseline = baseline_bytes(o.threads);
  BenchNetwork bench(o);
  const StepTimes times = run_steps(o, *bench.network, *bench.optimizer);
  check_loss(times.first_loss, times.last_loss);
  const std::optional<GpuSteps> gpu = gpu_steps(o, bench, times.first_loss);
  const double seconds = gpu ? gpu->as_trained() : median(times.total);
  const double gflop = static_cast<double>(training_flops(bench.graph)) * 1e-9;
  const double executed_gflop = executed_flops(bench.graph, bench.network->nodes()) * 1e-9;
  const std::size_t planned = bench.planned_bytes();
  const ResidentMemory resident = resident_memory();
  // After the memory measurements, because it allocates memory.
  std::optional<double> peak;
  if (!o.no_peak)
    peak = gigaflops_in(backend_for(o.where()).measure_peak(), *value_of<Precision>(o.precision));
  fmt::print("{} batch {} {}x{}x{} {} {} threads, planned in {:.1f} s\n", o.model, o.batch, o.image, o.image,
             o.channels, o.precision, o.threads, bench.planning_seconds);
  fmt::print("  step {:.1f} ms (forward {:.1f}, backward {:.1f}, optimizer {:.2f})\n", seconds * 1e3,
             median(times.forward) * 1e3, median(times.backward) * 1e3, median(times.optimizer) * 1e3);
  if (gpu) {
    fmt::print(
        "  {}, eager {:.3f} ms\n",
        gpu->recorded ? fmt::format("recorded {:.3f} ms", gpu->recorded->seconds * 1e3) : "not recorded",
        gpu->eager.seconds * 1e3);
  }
  fmt::print(
      "  {:.1f} samples/s, {:.0f} GFLOP/s counted direct, {:.0f} executed{}\n",
      static_cast<double>(o.batch) / seconds, gflop / seconds, executed_gflop / seconds,
      peak ? fmt::format(", peak {:.0f} GFLOP/s ({:.0f} %)", *peak, 100 * executed_gflop / seconds / *peak)
           : "");
  const std::optional<DeviceMemoryUse> memory = device_memory_use(o.where());
  if (memory) {
    fmt::print("  device memory {:.1f} MiB of {:.1f}: context {:.1f}, buffers {:.1f}, libraries {:.1f}\n",
               in_mib(memory->total - memory->available), in_mib(memory->total), in_mib(memory->at_start),
               in_mib(memory->buffers), in_mib(memory->libraries));
  }
  fmt::print("  planned {:.1f} MiB; resident peak {:.1f} MiB, including {:.1f} MiB of libraries\n",
             in_mib(planned), in_mib(resident.peak), in_mib(baseline));
  nlohmann::json result{{"benchmark", "step"},
                        {"machine", describe_machine()},
                        {"options", o.to_json()},
                        {"steps", o.steps},
                        {"samples_per_second", static_cast<double>(o.batch) / seconds},
                        {"step_ms", seconds * 1e3},
                        {"forward_ms", median(times.forward) * 1e3},
                        {"backward_ms", median(times.backward) * 1e3},
                        {"optimizer_ms", median(times.optimizer) * 1e3},
                        {"gflops_counted_direct", gflop / seconds},
                        {"gflops_executed", executed_gflop / seconds},
                        {"planned_bytes", planned},
                        {"resident_baseline_bytes", baseline},
                        {"resident_peak_bytes", resident.peak}};
  if (peak) result["peak_gflops"] = *peak;
  if (memory) result["device_memory"] = json_of(*memory);
  if (gpu) {
    result["eager_step_ms"] = gpu->eager.seconds * 1e3;
    result["eager_digest"] = gpu->eager.digest;
  }
  if (gpu && gpu->recorded) {
    result["recorded_step_ms"] = gpu->recorded->seconds * 1e3;
    result["recorded_digest"] = gpu->recorded->digest;
  }
  write_json(o.json, result);
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  lockstep::BenchProgram program(
      "step_bench",
      "Times full training steps (forward, loss, backward, update) on random images. Reports medians. On a "
      "GPU the time is the mean of steps that are replayed as a recorded graph while the host runs ahead, "
      "as in lockstep train. Eager steps, enqueued kernel by kernel, are reported, too. forward, backward "
      "and optimizer are the times of eager steps that the host waits for. GFLOP/s counts the operations of "
      "direct convolutions, and those that the kernels execute: a quarter for Winograd. The share of the "
      "peak is that of executed ones; the peak is measured on the same threads, or on the GPU in the same "
      "precision. Planned memory is that of the plan: activations, parameters, "
      "statistics, gradients, optimizer.");
  options.add_flags(program);
  program.positive("--steps", options.steps, "timed steps");
  program.not_negative("--warmup", options.warmup, "untimed steps before the timed ones");
  program.flag("--no-peak", options.no_peak, "do not measure the device's peak, which takes some seconds");
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
