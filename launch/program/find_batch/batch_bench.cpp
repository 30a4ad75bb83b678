// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/batch_bench.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/timeline.h"
#include "launch/train/parameter_reader.h"
#include "models/recompute.h"

namespace lockstep {
namespace {

constexpr double kTurnSeconds = 0.3;
constexpr std::int64_t kMostSteps = 1000;  // steps per turn
constexpr double kMostVisitSeconds = 10;   // no further pair starts after this time

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

BatchBench::BatchBench(World& world, Communicator& control, const Config& as_configured,
                       const Registry& registry)
    : world_(world), control_(control), config_(as_configured), bench_(world, control, registry) {}

Config BatchBench::with_batch(std::int64_t batch) const {
  Config config = config_;
  config.loader.batch = batch;
  if (config.loader.tail == Tail::exact) config.loader.tail = Tail::drop;  // short batches are not measured
  return config;
}

// Batch norm refuses a batch of 1 if it has one value per channel. With train.recompute = "auto" this batch
// would recompute nothing, but the largest one that fits recomputes.
std::unique_ptr<MeasuredTraining> BatchBench::build_smallest(std::int64_t& least) {
  const auto build = [&] {
    Config config = untimed(with_batch(least));
    if (config.network.recompute == Recompute::automatic) config.network.recompute = Recompute::least;
    return bench_.build(config);
  };
  if (least == 1) {
    try {
      return build();
    } catch (const ConfigError&) {
      least = 2;
    }
  }
  return build();
}

// With synchronised batch norm a rank cannot run alone.
std::unique_ptr<MeasuredTraining> BatchBench::build_proven(const Config& config) {
  std::unique_ptr<MeasuredTraining> built = bench_.build(config);
  built->warm_up(0);
  const auto rehearse = [&] { built->trainer().rehearse(); };
  if (config_.model.sync_batch_norm && control_.size() > 1)
    rehearse();
  else
    run_agreed(control_, rehearse);
  return built;
}

BatchLimits BatchBench::limits() {
  BatchLimits limits{.start = config_.loader.batch, .least = config_.network.augmentation.mixes() ? 2 : 1};
  const std::unique_ptr<MeasuredTraining> smallest = build_smallest(limits.least);
  TrainingSetup& training = smallest->training();
  if (!is_host_memory(training.network().device()))
    smallest->warm_up(Bench::kGpuWarmUpSteps);  // see largest_batch()
  const std::int64_t samples =
      bench_.datasets().train->size() / (control_.size() * config_.loader.accumulation);
  const std::int64_t most = std::ranges::min(gather_values(control_, training.largest_batch(samples)));
  limits.most = most / limits.least * limits.least;
  Network& network = training.network();
  limits.multiple = limits.least;
  for (const std::int64_t each :
       gather_values(control_, network.backend().batch_multiple(storage_type(network.precision()))))
    limits.multiple = std::lcm(limits.multiple, each);
  return limits;
}

std::int64_t BatchBench::settle(MeasuredTraining& built) {
  const bool gpu = !is_host_memory(built.trainer().device());
  built.warm_up(gpu ? Bench::kGpuWarmUpSteps : 1);
  const std::int64_t begin = now_ns();
  built.warm_up(1);
  const double wanted = std::ceil(kTurnSeconds / std::max(1e-5, bench_.agreed_seconds_since(begin)));
  return std::clamp(static_cast<std::int64_t>(wanted), std::int64_t{1}, kMostSteps);
}

BatchBench::Turn BatchBench::turn(MeasuredTraining& built, std::int64_t steps) {
  const BenchBlock block = bench_.block(built, steps);
  return {.block = block,
          .samples_per_second = static_cast<double>(built.global_batch()) / block.step_seconds};
}

void BatchBench::require_reference() {
  if (bench_.reference() != nullptr) return;
  bench_.set_reference(build_proven(with_batch(reference_batch_)));
  reference_steps_ = settle(*bench_.reference());
}

// A batch that does not fit beside the reference may fit alone, and one that recomputes there (with
// train.recompute = "auto") may recompute less alone.
std::unique_ptr<MeasuredTraining> BatchBench::build_beside(const Config& config) {
  const auto build = [&] { return build_proven(config); };
  std::unique_ptr<MeasuredTraining> built = bench_.build_beside_reference(build);
  const bool recomputes = built && config.network.recompute == Recompute::automatic &&
                          built->training().network().recomputes() != Recompute::nothing;
  if (recomputes && bench_.reference() != nullptr) {
    built.reset();
    bench_.set_reference(nullptr);
  }
  return built ? std::move(built) : build();
}

BatchBench::Turn BatchBench::take_turns(MeasuredTraining& built, std::int64_t steps, int pairs,
                                        double seconds) {
  const std::int64_t begin = now_ns();
  std::vector<Turn> turns;
  const auto reference = [&] {
    MeasuredTraining* const built_reference = bench_.reference();
    return built_reference == nullptr ? reference_rate_
                                      : turn(*built_reference, reference_steps_).samples_per_second;
  };
  double before = reference();
  for (int pair = 0; pair < pairs; ++pair) {
    turns.push_back(turn(built, steps));
    const double behind = reference();
    turns.back().ratio = 2 * turns.back().samples_per_second / (before + behind);
    before = behind;
    if (bench_.agreed_seconds_since(begin) > seconds) break;
  }
  const auto middle = turns.begin() + static_cast<std::ptrdiff_t>(turns.size() / 2);
  std::ranges::nth_element(turns, middle, {}, &Turn::ratio);
  return *middle;
}

BatchFigure BatchBench::visit(std::int64_t batch, int pairs) {
  const log::Quiet quiet(log::Quiet::Scope::process);
  const std::int64_t begin = now_ns();
  BatchFigure figure{.batch = batch};
  try {
    const bool first = reference_batch_ == 0;
    if (!first) require_reference();
    std::unique_ptr<MeasuredTraining> built =
        first ? build_proven(with_batch(batch)) : build_beside(with_batch(batch));
    const std::int64_t steps = settle(*built);
    if (first) reference_rate_ = turn(*built, steps).samples_per_second;
    const Turn typical = take_turns(*built, steps, pairs, kMostVisitSeconds);
    figure.samples_per_second = typical.ratio * reference_rate_;
    figure.step_seconds = static_cast<double>(built->global_batch()) / figure.samples_per_second;
    figure.exposed_seconds = typical.block.exposed_seconds;
    figure.busy = typical.block.busy;
    const BatchRoom room = built->training().room_for(batch, world_);
    figure.bytes = std::ranges::max(gather_values(control_, static_cast<std::uint64_t>(room.needed)));
    if (first) {
      reference_batch_ = batch;
      reference_rate_ = figure.samples_per_second;
      reference_steps_ = steps;
      bench_.set_reference(std::move(built));
    }
  } catch (const Error& error) {
    if (!is_of_configuration(error)) throw;
    figure = {.batch = batch, .problem = error.what()};
  }
  figure.seconds = bench_.agreed_seconds_since(begin);
  return figure;
}

double BatchBench::compare(std::int64_t batch, std::int64_t accumulation, int pairs, double seconds) {
  const log::Quiet quiet(log::Quiet::Scope::process);
  require_reference();
  Config config = with_batch(batch);
  config.loader.accumulation = accumulation;
  const std::unique_ptr<MeasuredTraining> built = build_beside(config);
  return take_turns(*built, settle(*built), pairs, seconds).ratio;
}

std::string BatchBench::prove(std::int64_t batch) {
  const log::Quiet quiet(log::Quiet::Scope::process);
  bench_.set_reference(nullptr);
  try {
    build_proven(untimed(with_batch(batch)));
  } catch (const Error& error) {
    if (!is_shortage(error)) throw;
    return error.what();
  }
  return {};
}

NoiseScale BatchBench::measure_noise(double seconds) {
  const log::Quiet quiet(log::Quiet::Scope::process);
  NoiseScale noise;
  std::unique_ptr<MeasuredTraining> own;
  if (exchanges_late(config_)) {
    own = build_beside(without_late_exchanges(with_batch(reference_batch_)));
  } else {
    require_reference();
  }
  MeasuredTraining& built = own ? *own : *bench_.reference();
  const std::int64_t begin = now_ns();
  do {
    built.warm_up(1);
    if (const std::optional<NoiseSample> sample = compare_gradients(built)) noise.add(*sample);
  } while (bench_.agreed_seconds_since(begin) < seconds);
  return noise;
}

// Empty if gradients were not finite.
std::optional<NoiseSample> BatchBench::compare_gradients(MeasuredTraining& built) {
  TrainingSetup& training = built.training();
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
    built.trainer().rehearse(behind_micro_batch);
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
