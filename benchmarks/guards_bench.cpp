// SPDX-License-Identifier: Apache-2.0
//
// Measures the cost of the guards. Ranks train with the Trainer in blocks of steps, in turns with and without
// the work that `lockstep train` does between steps by default (step watch, comparison of ranks, straggler
// detection, checkpoints that are not due). The ratio of the two is as noisy as the machine. The sum of the
// parts is not: the time between steps, a comparison of ranks every thousand steps, the watchdog's CPU time,
// the records of collectives, and the measurement of the rank's own time.
//
// With --report: the cost of lines of steps.jsonl and of the monitor, as shares of a step: making and writing
// a line, its gradient norm, and the monitor's CPU time.
//
// With --snapshot: how long a checkpoint's snapshot blocks training, in turns with a copy of as many bytes.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "comm/collective_log.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/timeline.h"
#include "launch/observe/account/step_series.h"
#include "launch/observe/monitor/monitor.h"
#include "launch/observe/run_files/report.h"
#include "launch/train/checkpoint/keeper.h"
#include "launch/train/checkpoint/shard.h"
#include "launch/train/checkpoint/stop_signals.h"
#include "launch/train/clock/own_time.h"
#include "launch/train/job_end.h"
#include "launch/train/watch/desync_check.h"
#include "launch/train/watch/step_watch.h"
#include "launch/train/watch/stragglers.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kStepsToComparison = 1000;  // run.check_every
constexpr double kStepShare = 0.005;               // limit for the guards, as a share of a step
constexpr double kReportShare = 0.003;             // limit for the report, as a share of a step
constexpr std::int64_t kStepsToLine = 50;          // run.log_every

struct GuardOptions : BenchOptions {
  GuardOptions() {
    model = "cnn";
    image = 28;
    channels = 1;
    threads = 1;
    kernels = "direct";
  }
  int blocks = 60;
  int steps = 20;
  bool snapshot = false;
  bool report = false;
};

// A rank's training, before its first step.
struct GuardedTraining {
  GuardedTraining(const GuardOptions& o, Communicator& communicator)
      : images(o, communicator.size() * o.batch * 4), graph(o.input()) {
    build_network(graph, {.name = o.model});
    KernelChoices first;
    network.emplace(graph, NetworkOptions{.choices = &first});
    buckets.emplace(network->parameters(), communicator, BucketOptions{});
    optimizer = make_optimizer(trained_memory(*network, buckets->gradients()), SgdOptions{});
    const Shard shard{.rank = communicator.rank(), .size = communicator.size()};
    train.emplace(images, shard, LoaderOptions{.batch = o.batch, .threads = 1});
    test.emplace(images, shard, LoaderOptions{.batch = o.batch, .tail = Tail::pad});
    trainer.emplace(Trainer::Parts{*network, *buckets, *optimizer, *train, *test, communicator},
                    Schedule{.base = kBenchRate, .total_steps = 1 << 30}, TrainerOptions{.epochs = 1 << 20});
  }

  RandomImages images;
  Graph graph;
  std::optional<Network> network;
  std::optional<GradientBuckets> buckets;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<BatchLoader> train, test;
  std::optional<Trainer> trainer;
};

double milliseconds_from(std::int64_t begin_ns) { return 1e3 * seconds_since(begin_ns); }

void meet(Communicator& communicator) {
  communicator.barrier();
  communicator.stream().synchronize();
}

// CPU time so far of this process's thread of that name; none if there is no such thread.
std::optional<double> thread_milliseconds(const std::string& thread) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    double nanoseconds = 0;
    if (name == thread && std::ifstream(task.path() / "schedstat") >> nanoseconds) return 1e-6 * nanoseconds;
  }
  return std::nullopt;
}

// Waits until the thread has its name, which a new thread sets when a core is free.
double processor_milliseconds(const std::string& thread) {
  for (;;) {
    if (const std::optional<double> found = thread_milliseconds(thread)) return *found;
    usleep(1000);
  }
}

// Time to record one collective.
double record_milliseconds() {
  constexpr int kCollectives = 200'000;
  CollectiveLog log("guards", 0, 1);
  const std::int64_t begin = now_ns();
  for (std::uint64_t sequence = 1; sequence <= kCollectives; ++sequence) {
    log.begin({.kind = CollectiveKind::all_reduce, .count = 1, .sequence = sequence});
    log.started(sequence);
    log.met(sequence, begin);
    log.sent(sequence, 4);
    log.finished(sequence);
  }
  return milliseconds_from(begin) / kCollectives;
}

// Time to measure a rank's own time in one step.
double own_time_milliseconds() {
  constexpr int kSteps = 100'000;
  OwnTime own;
  own.seconds();
  const std::int64_t begin = now_ns();
  for (int step = 0; step < kSteps; ++step) {
    for (const Phase phase : {Phase::data_wait, Phase::forward, Phase::backward, Phase::exposed_communication,
                              Phase::optimizer, Phase::rest})
      own.enter(phase);
  }
  return milliseconds_from(begin) / kSteps;
}

// The guards that `lockstep train` runs between steps, in its order.
struct Guards {
  Guards(World& world, Communicator& communicator, Trainer& trainer, StopSignals& signals,
         const std::filesystem::path& folder)
      : watch(world, trainer, 0),
        stragglers(trainer, communicator, [](const Straggler&) {}),
        check(trainer, communicator, kStepsToComparison),
        keeper({.trainer = trainer, .host = communicator, .signals = signals, .device = trainer.device()},
               {.minutes = 1e5}, folder, Manifest{.test_accuracy = {}, .files = {}}) {}
  StepWatch watch;
  StragglerWatch stragglers;
  DesyncCheck check;
  CheckpointKeeper keeper;
  std::vector<TrainingObserver*> all = {&watch, &stragglers, &check, &keeper};
};

struct Block {
  double step_ms = 0;
  double between_ms = 0;  // part of it between steps
};

Block run_block(const GuardOptions& o, Trainer& trainer, std::span<TrainingObserver* const> observers,
                Communicator& communicator) {
  meet(communicator);
  Block block;
  const std::int64_t begin = now_ns();
  for (int i = 0; i < o.steps; ++i) {
    std::int64_t begin_ns = now_ns();
    for (auto each = observers.rbegin(); each != observers.rend(); ++each) (*each)->before_step();
    block.between_ms += milliseconds_from(begin_ns) / o.steps;
    trainer.step();
    begin_ns = now_ns();
    for (TrainingObserver* each : observers) each->step_done({});
    for (TrainingObserver* each : observers) each->goes_on();
    block.between_ms += milliseconds_from(begin_ns) / o.steps;
  }
  block.step_ms = milliseconds_from(begin) / o.steps;
  return block;
}

nlohmann::json measure_guards(const GuardOptions& o, World& world, Communicator& communicator,
                              StopSignals& signals, const std::filesystem::path& folder) {
  GuardedTraining training(o, communicator);
  Trainer& trainer = *training.trainer;
  watch_job(world, communicator, 0);
  Guards guards(world, communicator, trainer, signals, folder);
  std::vector<double> plain, guarded, ratios, between, comparisons;
  double watchdog_ms = 0, blocks_ms = 0;
  std::uint64_t collectives = 0;
  for (int round = -1; round < o.blocks; ++round) {  // one to warm up
    double of_turn[2];
    for (const bool guards_first : {true, false}) {
      const bool with = guards_first == (round % 2 == 0);
      const double watchdog = processor_milliseconds("ls-watchdog");
      const std::uint64_t before = communicator.log().newest();
      const Block block =
          run_block(o, trainer, with ? guards.all : std::vector<TrainingObserver*>(), communicator);
      of_turn[with] = block.step_ms;
      if (round < 0) continue;
      watchdog_ms += processor_milliseconds("ls-watchdog") - watchdog;
      blocks_ms += block.step_ms * o.steps;
      if (with) collectives = std::max(collectives, communicator.log().newest() - before);
      if (with) between.push_back(block.between_ms);
    }
    if (round < 0) continue;
    plain.push_back(of_turn[0]);
    guarded.push_back(of_turn[1]);
    ratios.push_back(of_turn[1] / of_turn[0]);
    meet(communicator);
    const std::int64_t begin = now_ns();
    require_same_tensors(communicator, replicated_hashes(trainer), "now");
    comparisons.push_back(milliseconds_from(begin));
  }
  const double step = median(plain);
  const double per_step = static_cast<double>(collectives) / o.steps;
  const double record = record_milliseconds();
  nlohmann::json parts = {{"between_steps", median(between) / step},
                          {"comparisons", median(comparisons) / kStepsToComparison / step},
                          {"watchdog", watchdog_ms / blocks_ms},
                          {"own_time", own_time_milliseconds() / step},
                          {"records", record * per_step / step}};
  double sum = 0;
  for (const auto& [name, share] : parts.items()) sum += share.get<double>();
  return {{"step_ms", step},
          {"guarded_step_ms", median(guarded)},
          {"ratio", median(ratios)},
          {"comparison_ms", median(comparisons)},
          {"record_us", 1e3 * record},
          {"collectives_per_step", per_step},
          {"parts", parts},
          {"sum_of_parts", sum},
          {"within_limit", sum < kStepShare}};
}

// The report's share of rank 0's step, with one line every kStepsToLine steps.
nlohmann::json measure_report(const GuardOptions& o, Communicator& communicator,
                              const std::filesystem::path& folder) {
  GuardedTraining training(o, communicator);
  Trainer& trainer = *training.trainer;
  Report report({.speaks = communicator.rank() == 0, .directory = folder});
  Backend& backend = backend_for({});
  Stream stream({}, StreamUse::compute);
  std::vector<double> sums(kSquareSums);
  run_block(o, trainer, {}, communicator);  // to warm up
  std::optional<DeviceMonitor> monitor;
  if (communicator.rank() == 0) monitor.emplace(MonitorOptions{.file = folder / "monitor.csv"});
  std::vector<double> steps, lines, norms;
  double monitored_ms = 0, monitor_ms = 0;
  StepSeries series(kStepsToLine, {});
  for (int round = 0; round < o.blocks; ++round) {
    const double before = monitor ? processor_milliseconds("ls-monitor") : 0;
    const std::int64_t block_begin = now_ns();
    steps.push_back(run_block(o, trainer, {}, communicator).step_ms);
    if (monitor) monitor_ms += processor_milliseconds("ls-monitor") - before;
    monitored_ms += milliseconds_from(block_begin);
    std::int64_t begin = now_ns();
    training.optimizer->sum_gradient_squares(stream, sums.data());
    norms.push_back(milliseconds_from(begin));
    begin = now_ns();
    StepLine line = series.take({.epoch_step = (round + 1) * kStepsToLine,
                                 .samples = (round + 1) * kStepsToLine * o.batch,
                                 .steps = (round + 1) * kStepsToLine,
                                 .account = {},
                                 .without_core_seconds = backend.seconds_without_core(0),
                                 .losses = {}});
    line.step = (round + 1) * kStepsToLine;
    report.series(line);
    lines.push_back(milliseconds_from(begin));
  }
  monitor.reset();
  const double step = median(steps);
  nlohmann::json parts = {{"lines", median(lines) / kStepsToLine / step},
                          {"norms", median(norms) / kStepsToLine / step},
                          {"monitor", monitor_ms / monitored_ms}};
  double sum = 0;
  for (const auto& [name, share] : parts.items()) sum += share.get<double>();
  return {{"step_ms", step},
          {"line_us", 1e3 * median(lines)},
          {"norm_us", 1e3 * median(norms)},
          {"parts", parts},
          {"sum_of_parts", sum},
          {"within_limit", sum < kReportShare}};
}

// A snapshot ends when every rank has done its part: rank 0 copies the replicated state, the other ranks hash
// theirs.
nlohmann::json measure_snapshot(const GuardOptions& o, Communicator& communicator) {
  GuardedTraining training(o, communicator);
  Trainer& trainer = *training.trainer;
  using Shared = StateSnapshotTaker::Shared;
  StateSnapshotTaker taker(trainer.device(), communicator.rank() == 0 ? Shared::takes : Shared::hashes);
  const auto show = [&](StateVisitor& visitor) { trainer.visit_state(visitor); };
  std::vector<double> steps, snapshots, copies, excess;
  taker.take(show);
  const std::size_t bytes = taker.bytes();
  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 0);
  for (int round = -1; round < o.blocks; ++round) {
    meet(communicator);
    std::int64_t begin = now_ns();
    trainer.step();
    meet(communicator);
    const double step = milliseconds_from(begin);
    begin = now_ns();
    taker.take(show);
    meet(communicator);
    const double snapshot = milliseconds_from(begin);
    begin = now_ns();
    std::memcpy(to.data(), from.data(), bytes);
    meet(communicator);
    const double copy = milliseconds_from(begin);
    CHECK(to == from, "the copy differs from its source");
    if (round < 0) continue;
    steps.push_back(step);
    snapshots.push_back(snapshot);
    copies.push_back(copy);
    excess.push_back(snapshot - copy);
  }
  const double gigabytes = 1e-9 * static_cast<double>(bytes);
  return {{"bytes", bytes},
          {"step_ms", median(steps)},
          {"snapshot_ms", median(snapshots)},
          {"copy_ms", median(copies)},
          {"beyond_a_copy_ms_per_gb", median(excess) / gigabytes},
          {"beyond_a_copy_of_a_step_per_gb", median(excess) / gigabytes / median(steps)}};
}

void tell(const GuardOptions& o, const nlohmann::json& found) {
  const auto number = [&](const char* name) { return found.at(name).get<double>(); };
  if (o.snapshot) {
    fmt::print(
        "{}: a snapshot of {:.0f} MB takes {:.1f} ms, a copy {:.1f} ms: {:.1f} ms more per GB, {:.2f} % of "
        "a step of {:.0f} ms\n",
        o.model, 1e-6 * number("bytes"), number("snapshot_ms"), number("copy_ms"),
        number("beyond_a_copy_ms_per_gb"), 100 * number("beyond_a_copy_of_a_step_per_gb"), number("step_ms"));
    return;
  }
  if (o.report) {
    fmt::print("{}: a step takes {:.3f} ms; reports take {:.4f} % of it\n", o.model, number("step_ms"),
               100 * number("sum_of_parts"));
  } else {
    fmt::print(
        "{}: a step takes {:.3f} ms, with guards {:.3f} ms, ratio {:.4f} (median of {}); the parts add up to "
        "{:.3f} %\n",
        o.model, number("step_ms"), number("guarded_step_ms"), number("ratio"), o.blocks,
        100 * number("sum_of_parts"));
  }
  for (const auto& [name, share] : found.at("parts").items())
    fmt::print("  {:<14} {:.4f} %\n", name, 100 * share.get<double>());
}

int run(const GuardOptions& o) {
  StopSignals& signals = StopSignals::of_process();  // before there are other threads
  World world = World::join();
  const int code = run_or_abort(world, [&] {
    signals.allow_grace(60);
    const std::unique_ptr<Communicator> communicator = world.communicator();
    backend_for({}).set_threads(o.threads);
    const auto folder = std::filesystem::temp_directory_path() / fmt::format("lockstep_guards_{}", getpid());
    nlohmann::json found = o.snapshot ? measure_snapshot(o, *communicator)
                           : o.report ? measure_report(o, *communicator, folder)
                                      : measure_guards(o, world, *communicator, signals, folder);
    std::filesystem::remove_all(folder);
    if (world.rank() > 0) return exit_code::done;
    tell(o, found);
    found.update({{"benchmark", "guards"},
                  {"machine", describe_machine()},
                  {"options", o.to_json()},
                  {"ranks", world.size()},
                  {"blocks", o.blocks},
                  {"steps_per_block", o.steps}});
    write_json(o.json, found);
    return exit_code::done;
  });
  leave_or_abort(world, code);
  return code;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::GuardOptions options;
  lockstep::BenchProgram program(
      "guards_bench",
      "Measures the cost of guards, of reports (--report) and of a checkpoint's snapshot (--snapshot) in a "
      "training. Run it with mpirun.");
  options.add_shape_flags(program);
  program.positive("--blocks", options.blocks, "pairs of blocks, or number of snapshots");
  program.positive("--steps", options.steps, "steps in a block");
  program.flag("--snapshot", options.snapshot,
               "measure a checkpoint's snapshot and a copy of as many bytes, in turns");
  program.flag("--report", options.report, "measure the cost of lines of steps.jsonl and of the monitor");
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
