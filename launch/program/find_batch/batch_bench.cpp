// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/batch_bench.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "launch/train/parameter_reader.h"
#include "launch/train/quantile.h"

namespace lockstep {
namespace {

constexpr double kTurnSeconds = 0.3;
constexpr std::int64_t kMostSteps = 1000;  // steps per turn
// A GPU records the third and fourth step.
constexpr std::int64_t kGpuWarmUpSteps = 5;
constexpr double kMostVisitSeconds = 10;  // no further pair starts after this time

// Gradients are read from local passes, without the exchanges of a step.
Config without_late_exchanges(Config config) {
  config.gradients.cross_barrier = false;
  config.gradients.staleness = 0;
  config.trainer.average_every = 0;
  config.trainer.topology = Topology::all;
  return config;
}

// Chooses kernels without timing them, which takes long for large batches. For runs that are not measured.
Config untimed(Config config) {
  if (config.kernels.choose == "time") config.kernels.choose = "direct";
  return config;
}

bool exchanges_late(const Config& config) {
  return config.gradients.cross_barrier || config.gradients.staleness > 0 ||
         config.trainer.average_every > 1 || config.trainer.topology != Topology::all;
}

}  // namespace

struct BatchBench::Built {
  BenchTraining bench;
  std::int64_t turn_steps = 1;
};

BatchBench::BatchBench(World& world, Communicator& control, const Config& as_configured,
                       const Registry& registry)
    : world_(world), control_(control), config_(as_configured), registry_(registry) {}

BatchBench::~BatchBench() = default;

Config BatchBench::with_batch(std::int64_t batch) const {
  Config config = config_;
  config.loader.batch = batch;
  if (config.loader.tail == Tail::exact) config.loader.tail = Tail::drop;  // short batches are not measured
  return config;
}

std::unique_ptr<BatchBench::Built> BatchBench::build(const Config& config) {
  auto built = std::unique_ptr<Built>(new Built{.bench{world_, config, registry_, datasets_}});
  datasets_ = built->bench.training().datasets();
  return built;
}

// Batch norm refuses a batch of 1 if it has one value per channel.
std::unique_ptr<BatchBench::Built> BatchBench::build_smallest(std::int64_t& least) {
  if (least == 1) {
    try {
      return build(untimed(with_batch(1)));
    } catch (const ConfigError&) {
      least = 2;
    }
  }
  return build(untimed(with_batch(least)));
}

// With synchronised batch norm a rank cannot run alone.
std::unique_ptr<BatchBench::Built> BatchBench::build_proven(const Config& config) {
  std::unique_ptr<Built> built = build(config);
  built->bench.warm_up(0);
  const auto rehearse = [&] { built->bench.trainer().rehearse(); };
  if (config_.model.sync_batch_norm && control_.size() > 1)
    rehearse();
  else
    run_agreed(control_, rehearse);
  return built;
}

BatchLimits BatchBench::limits() {
  BatchLimits limits{.start = config_.loader.batch, .least = config_.network.augmentation.mixes() ? 2 : 1};
  const std::unique_ptr<Built> smallest = build_smallest(limits.least);
  TrainingSetup& training = smallest->bench.training();
  if (!is_host_memory(training.network().device()))
    smallest->bench.warm_up(kGpuWarmUpSteps);  // see largest_batch()
  const std::int64_t samples = datasets_.train->size() / (control_.size() * config_.loader.accumulation);
  const std::int64_t most = std::ranges::min(gather_values(control_, training.largest_batch(samples)));
  limits.most = most / limits.least * limits.least;
  Network& network = training.network();
  limits.multiple = limits.least;
  for (const std::int64_t each :
       gather_values(control_, network.backend().batch_multiple(storage_type(network.precision()))))
    limits.multiple = std::lcm(limits.multiple, each);
  return limits;
}

double BatchBench::agreed_seconds_since(std::int64_t begin_ns) {
  return std::ranges::max(gather_values(control_, seconds_between(begin_ns, now_ns())));
}

void BatchBench::settle(Built& built) {
  const bool gpu = !is_host_memory(built.bench.trainer().device());
  built.bench.warm_up(gpu ? kGpuWarmUpSteps : 1);
  const std::int64_t begin = now_ns();
  built.bench.warm_up(1);
  const double wanted = std::ceil(kTurnSeconds / std::max(1e-5, agreed_seconds_since(begin)));
  built.turn_steps = std::clamp(static_cast<std::int64_t>(wanted), std::int64_t{1}, kMostSteps);
}

BatchBench::Turn BatchBench::turn(Built& built) {
  Turn slowest;
  const std::vector<BenchBlock> blocks =
      gather_values(control_, built.bench.block(control_, built.turn_steps));
  for (const BenchBlock& block : blocks) {
    slowest.step_seconds = std::max(slowest.step_seconds, block.step_seconds);
    slowest.exposed_seconds = std::max(slowest.exposed_seconds, block.exposed_seconds);
    slowest.busy += block.busy / static_cast<double>(blocks.size());
  }
  slowest.samples_per_second =
      static_cast<double>(built.bench.training().train_loader().global_batch()) / slowest.step_seconds;
  return slowest;
}

void BatchBench::require_reference() {
  if (reference_) return;
  reference_ = build_proven(with_batch(reference_batch_));
  settle(*reference_);
}

// A batch that does not fit beside the reference may fit alone.
std::unique_ptr<BatchBench::Built> BatchBench::build_beside(const Config& config) {
  try {
    return build_proven(config);
  } catch (const Error& error) {
    if (!is_shortage(error)) throw;
  }
  reference_.reset();
  return build_proven(config);
}

BatchBench::Turn BatchBench::take_turns(Built& built, int pairs, double seconds) {
  const std::int64_t begin = now_ns();
  std::vector<Turn> turns;
  const auto reference = [&] { return reference_ ? turn(*reference_).samples_per_second : reference_rate_; };
  double before = reference();
  for (int pair = 0; pair < pairs; ++pair) {
    turns.push_back(turn(built));
    const double behind = reference();
    turns.back().ratio = 2 * turns.back().samples_per_second / (before + behind);
    before = behind;
    if (agreed_seconds_since(begin) > seconds) break;
  }
  const auto middle = turns.begin() + static_cast<std::ptrdiff_t>(turns.size() / 2);
  std::ranges::nth_element(turns, middle, {}, &Turn::ratio);
  return *middle;
}

BatchFigure BatchBench::visit(std::int64_t batch, int pairs) {
  const QuietBuilds quiet;
  const std::int64_t begin = now_ns();
  BatchFigure figure{.batch = batch};
  try {
    const bool first = reference_batch_ == 0;
    if (!first) require_reference();
    std::unique_ptr<Built> built = first ? build_proven(with_batch(batch)) : build_beside(with_batch(batch));
    settle(*built);
    if (first) reference_rate_ = turn(*built).samples_per_second;
    const Turn typical = take_turns(*built, pairs, kMostVisitSeconds);
    figure.samples_per_second = typical.ratio * reference_rate_;
    figure.step_seconds = static_cast<double>(built->bench.training().train_loader().global_batch()) /
                          figure.samples_per_second;
    figure.exposed_seconds = typical.exposed_seconds;
    figure.busy = typical.busy;
    const BatchRoom room = built->bench.training().room_for(batch, world_);
    figure.bytes = std::ranges::max(gather_values(control_, static_cast<std::uint64_t>(room.needed)));
    if (first) {
      reference_batch_ = batch;
      reference_rate_ = figure.samples_per_second;
      reference_ = std::move(built);
    }
  } catch (const Error& error) {
    if (!is_of_configuration(error)) throw;
    figure = {.batch = batch, .problem = error.what()};
  }
  figure.seconds = agreed_seconds_since(begin);
  return figure;
}

double BatchBench::compare(std::int64_t batch, std::int64_t accumulation, int pairs, double seconds) {
  const QuietBuilds quiet;
  require_reference();
  Config config = with_batch(batch);
  config.loader.accumulation = accumulation;
  const std::unique_ptr<Built> built = build_beside(config);
  settle(*built);
  return take_turns(*built, pairs, seconds).ratio;
}

std::string BatchBench::prove(std::int64_t batch) {
  const QuietBuilds quiet;
  reference_.reset();
  try {
    build_proven(untimed(with_batch(batch)));
  } catch (const Error& error) {
    if (!is_shortage(error)) throw;
    return error.what();
  }
  return {};
}

NoiseScale BatchBench::measure_noise(double seconds) {
  const QuietBuilds quiet;
  NoiseScale noise;
  std::unique_ptr<Built> own;
  if (exchanges_late(config_)) {
    own = build(without_late_exchanges(with_batch(reference_batch_)));
  } else {
    require_reference();
  }
  Built& built = own ? *own : *reference_;
  const std::int64_t begin = now_ns();
  do {
    built.bench.warm_up(1);
    if (const std::optional<NoiseSample> sample = compare_gradients(built)) noise.add(*sample);
  } while (agreed_seconds_since(begin) < seconds);
  return noise;
}

// Empty if gradients were not finite.
std::optional<NoiseSample> BatchBench::compare_gradients(Built& built) {
  TrainingSetup& training = built.bench.training();
  Network& network = training.network();
  Stream stream(network.device(), StreamUse::compute);
  ParameterReader reader(network, stream);
  std::int64_t elements = 0;
  for (const Parameter& each : network.parameters()) elements += each.layout.shape().elements();
  MicroBatchGradients sums(elements);
  const auto behind_micro_batch = [&] {
    for (const Parameter& each : network.parameters()) sums.add(reader.read_gradient(each));
    sums.end_micro_batch();
  };
  do {
    built.bench.trainer().rehearse(behind_micro_batch);
  } while (sums.micro_batches() * control_.size() < 2);
  control_.all_reduce(sums.values().data(), sums.values().size(), DType::f32, ReduceOp::sum);
  control_.stream().synchronize();
  const std::vector<double> squares = gather_values(control_, sums.squares());
  const double scale = training.optimizer().read_control(stream).loss_scale;
  const double micro_batches = static_cast<double>(sums.micro_batches() * control_.size());
  const double batch = static_cast<double>(reference_batch_);
  const NoiseSample sample{
      .small_square = std::accumulate(squares.begin(), squares.end(), 0.0) / (micro_batches * scale * scale),
      .large_square = sums.square_of_sum() / (micro_batches * micro_batches * scale * scale),
      .small_batch = batch,
      .large_batch = batch * micro_batches};
  if (!std::isfinite(sample.small_square) || !std::isfinite(sample.large_square)) return std::nullopt;
  return sample;
}

}  // namespace lockstep
