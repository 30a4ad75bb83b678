// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/bench.h"

#include <algorithm>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/timeline.h"
#include "kernels/backend.h"
#include "launch/observe/account/busy.h"
#include "launch/program/setup/engine_options.h"

namespace lockstep {

MeasuredTraining::MeasuredTraining(World& world, const Config& config, const Registry& registry,
                                   const Datasets& datasets)
    : world_(world), between_nodes_(config.between_nodes), communicator_(world.communicator()) {
  training_.emplace(config, world, *communicator_,
                    TrainingSetup::Options{.init = "", .registry = registry, .datasets = datasets});
  TrainerOptions options = trainer_options(config);
  options.max_steps = 0;
  trainer_.emplace(training_->parts(), training_->schedule(), options);
  trainer_->hold_codecs(true);  // "auto" keeps its first choice: codecs are tried by name
}

void MeasuredTraining::warm_up(std::int64_t steps) {
  backend_for(trainer_->device()).set_threads(training_->threads());
  world_.set_between_nodes(between_nodes_);  // applies to all communicators of the process
  for (std::int64_t step = 0; step < steps; ++step) trainer_->step();
  trainer_->take_account();  // waits for the steps
}

BenchBlock MeasuredTraining::block(Communicator& control, std::int64_t steps) {
  warm_up(0);
  gather_values<std::int32_t>(control, 0);  // all ranks begin together
  trainer_->take_account();
  const double without_core = trainer_->compute_without_core();
  const std::int64_t begin = now_ns();
  for (std::int64_t step = 0; step < steps; ++step) trainer_->step();
  const StepAccount account = trainer_->take_account();
  const double count = static_cast<double>(steps);
  return {.step_seconds = seconds_between(begin, now_ns()) / count,
          .exposed_seconds = account[Phase::exposed_communication] / count,
          .busy = busy_share(account, trainer_->compute_without_core() - without_core)};
}

std::unique_ptr<MeasuredTraining> Bench::build(const Config& config) {
  auto built = std::make_unique<MeasuredTraining>(world_, config, registry_, datasets_);
  datasets_ = built->training().datasets();
  return built;
}

std::unique_ptr<MeasuredTraining> Bench::build_beside_reference(const Build& build) {
  try {
    return build();
  } catch (const Error& error) {
    if (!is_shortage(error)) throw;
  }
  reference_.reset();
  return nullptr;
}

BenchBlock Bench::block(MeasuredTraining& built, std::int64_t steps) {
  const std::vector<BenchBlock> blocks = gather_values(control_, built.block(control_, steps));
  BenchBlock slowest;
  for (const BenchBlock& block : blocks) {
    slowest.step_seconds = std::max(slowest.step_seconds, block.step_seconds);
    slowest.exposed_seconds = std::max(slowest.exposed_seconds, block.exposed_seconds);
    slowest.busy += block.busy / static_cast<double>(blocks.size());
  }
  return slowest;
}

double Bench::agreed_seconds_since(std::int64_t begin_ns) {
  return std::ranges::max(gather_values(control_, seconds_since(begin_ns)));
}

bool is_of_configuration(const Error& error) {
  return error.agreed() && (error.exit_code() == exit_code::config || is_shortage(error));
}

bool is_shortage(const Error& error) { return error.agreed() && error.exit_code() == exit_code::io; }

}  // namespace lockstep
