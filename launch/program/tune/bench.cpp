// SPDX-License-Identifier: Apache-2.0
#include "launch/program/tune/bench.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/error.h"
#include "core/log.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

constexpr double kBlockSeconds = 0.4;
// Steps of this length need no settling steps: the cost of a change of turns is small beside them.
constexpr double kLongStepSeconds = 0.2;
constexpr std::int64_t kCpuWarmUpSteps = 3;

}  // namespace

TuneBench::TuneBench(World& world, Communicator& control, const Config& as_configured,
                     const Registry& registry)
    : bench_(world, control, registry), as_configured_(as_configured) {
  bench_.set_reference(bench_.build(as_configured_));
  TrainingSetup& training = bench_.reference()->training();
  Network& network = training.network();
  const auto parameters = network.parameters();
  facts_ = {.device = network.device(),
            .threads = training.threads(),
            .global_batch = bench_.reference()->global_batch(),
            .parameters = {parameters.begin(), parameters.end()},
            .backend = network.backend().describe()};
}

void TuneBench::warm_up(MeasuredTraining& built, std::int64_t steps) {
  built.warm_up(steps);
  steps_done_ += steps;
}

BenchBlock TuneBench::block(MeasuredTraining& built, std::int64_t settling, std::int64_t steps) {
  warm_up(built, settling);
  const BenchBlock slowest = bench_.block(built, steps);
  steps_done_ += steps;
  return slowest;
}

TuneVisit TuneBench::calibrate(std::int64_t steps_at_most) {
  const std::int64_t begin = now_ns(), before = steps_done_;
  const bool gpu = facts_.device.kind != DeviceKind::cpu;
  BenchBlock first = block(*bench_.reference(), gpu ? Bench::kGpuWarmUpSteps : 1, 1);
  if (first.step_seconds < kLongStepSeconds) {
    const double fits = std::ceil(kLongStepSeconds / std::max(first.step_seconds, 1e-4));
    const auto most = static_cast<double>(std::clamp<std::int64_t>(steps_at_most, 2, 50));
    first =
        block(*bench_.reference(), kCpuWarmUpSteps, static_cast<std::int64_t>(std::clamp(fits, 2.0, most)));
  }
  return {
      .blocks = {first}, .seconds = seconds_since(begin), .steps = static_cast<double>(steps_done_ - before)};
}

void TuneBench::set_turns(double step_seconds, std::int64_t steps_at_most) {
  const double fits = std::ceil(kBlockSeconds / std::max(step_seconds, 1e-5));
  block_steps_ = std::clamp(static_cast<std::int64_t>(std::min(fits, 1000.0)), std::int64_t{1},
                            std::max(steps_at_most, std::int64_t{1}));
  const bool is_long = step_seconds >= kLongStepSeconds;
  settling_steps_ = is_long ? 0 : 1;
  warm_up_steps_ = is_long ? 1 : kCpuWarmUpSteps;
  if (facts_.device.kind != DeviceKind::cpu) warm_up_steps_ = Bench::kGpuWarmUpSteps;
}

TuneVisit TuneBench::visit(const Config& candidate, int pairs,
                           const std::function<void(double seconds, double steps)>& tell_turn) {
  const log::Quiet quiet(log::Quiet::Scope::process);
  const std::int64_t begin = now_ns(), before = steps_done_;
  TuneVisit visit;
  const auto count = [&] {
    visit.seconds = seconds_since(begin);
    visit.steps = static_cast<double>(steps_done_ - before);
  };
  const auto turn = [&](MeasuredTraining* of, const Config& config) {
    visit.blocks.push_back(take_turn(of, config));
    count();
    if (tell_turn) tell_turn(visit.seconds, visit.steps);
  };
  try {
    // A candidate that lacks memory beside the configuration may fit without it.
    const std::unique_ptr<MeasuredTraining> other =
        bench_.reference() == nullptr
            ? nullptr
            : bench_.build_beside_reference([&] { return bench_.build(candidate); });
    if (other) {
      // A resumed search reuses the measurement of calibrate(), which otherwise warms up the reference.
      if (steps_done_ == 0) warm_up(*bench_.reference(), warm_up_steps_);
      warm_up(*other, warm_up_steps_);
    }
    turn(bench_.reference(), as_configured_);
    for (int pair = 0; pair < pairs; ++pair) {
      turn(other.get(), candidate);
      turn(bench_.reference(), as_configured_);
    }
  } catch (const Error& error) {
    if (!is_of_configuration(error)) throw;
    visit.blocks.clear();
    visit.problem = error.what();
  }
  count();
  return visit;
}

BenchBlock TuneBench::take_turn(MeasuredTraining* of, const Config& config) {
  if (of != nullptr) return block(*of, settling_steps_, block_steps_);
  const std::unique_ptr<MeasuredTraining> alone = bench_.build(config);
  return block(*alone, warm_up_steps_, block_steps_);
}

}  // namespace lockstep
