// SPDX-License-Identifier: Apache-2.0
#include "launch/program/tune/bench.h"

#include <algorithm>
#include <cmath>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

constexpr double kBlockSeconds = 0.4;
// Steps of this length need no settling steps: the cost of a change of turns is small beside them.
constexpr double kLongStepSeconds = 0.2;
// On a GPU the third and the fourth step are recorded for replay (launch/train/step/step_recordings.h).
constexpr std::int64_t kGpuWarmUpSteps = 5;
constexpr std::int64_t kCpuWarmUpSteps = 3;

}  // namespace

TuneBench::TuneBench(World& world, Communicator& control, const Config& as_configured,
                     const Registry& registry)
    : world_(world), control_(control), as_configured_(as_configured), registry_(registry) {
  default_ = build(as_configured_);
  TrainingSetup& training = default_->training();
  Network& network = training.network();
  const auto parameters = network.parameters();
  facts_ = {.device = network.device(),
            .threads = training.threads(),
            .global_batch = training.train_loader().global_batch(),
            .parameters = {parameters.begin(), parameters.end()},
            .backend = network.backend().describe()};
}

std::unique_ptr<BenchTraining> TuneBench::build(const Config& config) {
  auto built = std::make_unique<BenchTraining>(world_, config, registry_, datasets_);
  datasets_ = built->training().datasets();
  return built;
}

void TuneBench::warm_up(BenchTraining& built, std::int64_t steps) {
  built.warm_up(steps);
  steps_done_ += steps;
}

TuneBlock TuneBench::block(BenchTraining& built, std::int64_t settling, std::int64_t steps) {
  warm_up(built, settling);
  const BenchBlock mine = built.block(control_, steps);
  steps_done_ += steps;
  TuneBlock slowest;
  for (const BenchBlock& block : gather_values(control_, mine)) {
    slowest.step_seconds = std::max(slowest.step_seconds, block.step_seconds);
    slowest.exposed_seconds = std::max(slowest.exposed_seconds, block.exposed_seconds);
  }
  return slowest;
}

TuneVisit TuneBench::calibrate(std::int64_t steps_at_most) {
  const std::int64_t begin = now_ns(), before = steps_done_;
  const bool gpu = facts_.device.kind != DeviceKind::cpu;
  TuneBlock first = block(*default_, gpu ? kGpuWarmUpSteps : 1, 1);
  if (first.step_seconds < kLongStepSeconds) {
    const double fits = std::ceil(kLongStepSeconds / std::max(first.step_seconds, 1e-4));
    const auto most = static_cast<double>(std::clamp<std::int64_t>(steps_at_most, 2, 50));
    first = block(*default_, kCpuWarmUpSteps, static_cast<std::int64_t>(std::clamp(fits, 2.0, most)));
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
  if (facts_.device.kind != DeviceKind::cpu) warm_up_steps_ = kGpuWarmUpSteps;
}

TuneVisit TuneBench::visit(const Config& candidate, int pairs) {
  const QuietBuilds quiet;
  const std::int64_t begin = now_ns(), before = steps_done_;
  TuneVisit visit;
  const auto count = [&] {
    visit.seconds = seconds_since(begin);
    visit.steps = static_cast<double>(steps_done_ - before);
  };
  try {
    measure(candidate, pairs, visit, [&] {
      count();
      if (turn_teller_) turn_teller_(visit.seconds, visit.steps);
    });
  } catch (const Error& error) {
    if (!is_of_configuration(error)) throw;
    visit.blocks.clear();
    visit.problem = error.what();
  }
  count();
  return visit;
}

void TuneBench::measure(const Config& candidate, int pairs, TuneVisit& visit,
                        const std::function<void()>& behind_turn) {
  const std::unique_ptr<BenchTraining> other = default_ ? build_beside(candidate) : nullptr;
  if (other) warm_up(*other, warm_up_steps_);
  const auto turn = [&](BenchTraining* of, const Config& config) {
    visit.blocks.push_back(take_turn(of, config));
    behind_turn();
  };
  turn(default_.get(), as_configured_);
  for (int pair = 0; pair < pairs; ++pair) {
    turn(other.get(), candidate);
    turn(default_.get(), as_configured_);
  }
}

TuneBlock TuneBench::take_turn(BenchTraining* of, const Config& config) {
  if (of != nullptr) return block(*of, settling_steps_, block_steps_);
  const std::unique_ptr<BenchTraining> alone = build(config);
  return block(*alone, warm_up_steps_, block_steps_);
}

// A candidate that lacks memory beside the configuration may fit without it.
std::unique_ptr<BenchTraining> TuneBench::build_beside(const Config& candidate) {
  try {
    return build(candidate);
  } catch (const Error& error) {
    if (!is_shortage(error)) throw;
  }
  default_.reset();
  return nullptr;
}

}  // namespace lockstep
