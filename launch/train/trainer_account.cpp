// SPDX-License-Identifier: Apache-2.0
//
// A Trainer's account of its steps: their times and sums, for records and observers.
#include <algorithm>
#include <vector>

#include "comm/agreement.h"
#include "core/system/processor_time.h"
#include "launch/train/step/shared_steps.h"
#include "launch/train/trainer.h"

namespace lockstep {
namespace {

// Collective unless empty on every rank. Empty if ranks have different numbers of values.
std::vector<float> least_over_ranks(Communicator& host, std::vector<float> values) {
  if (values.empty() || !ranks_without(values.size(), gather_values(host, values.size())).empty()) return {};
  host.all_reduce(values.data(), values.size(), DType::f32, ReduceOp::min);
  host.stream().synchronize();
  return values;
}

}  // namespace

// Reads the total last, so that it includes the parts.
ProcessorAccount Trainer::processor_account() {
  ProcessorAccount account{.data = parts_.train.processor_seconds() + parts_.test.processor_seconds()};
  for (Communicator* communicator : recordings_.communicators()) {
    if (communicator->size() > 1) account.communication += communicator->stream().processor_seconds();
  }
  account.compute = processor_seconds() - account.communication - account.data;
  return account;
}

double Trainer::communication_without_core() {
  Stream& stream = parts_.communicator.stream();
  if (!stream.runs_on_host() || !ledger_) return 0;
  double seconds = 0;
  stream.enqueue([&seconds] { seconds = seconds_without_core(); });
  stream.synchronize();
  return seconds;
}

double Trainer::compute_without_core() {
  return parts_.network.backend().seconds_without_core(clock_.without_core_outside_compute());
}

// The losses of a new epoch begin when its first step is settled.
StepTotals Trainer::totals() {
  return {.epoch_step = position_.epoch_step,
          .samples = parts_.train.samples_in(0, position_.epoch_step),
          .steps = position_.enqueued - settled_.undone,
          .account = clock_.so_far(),
          .without_core_seconds = compute_without_core(),
          .loader_seconds = parts_.train.processor_seconds(),
          .losses = position_.epoch_step == 0 ? LossTotals{} : settled_.losses};
}

LastStep Trainer::last_step() const {
  return {.learning_rate = learning_rate_at(position_.step - 1),
          .loss_scale = settled_.loss_scale,
          .gradient_norm = settled_.gradient_norm};
}

bool Trainer::holds_gradients() const {
  return position_.enqueued > position_.restored && end_->holds_gradients(position_.step - 1);
}

Trainer::EpochRun Trainer::begin_run() {
  position_.reported = 0;
  take_account();
  if (ledger_) ledger_->take();
  EpochRun run{.begin_ns = clock_.taken_ns(),
               .first_step = position_.epoch_step,
               .end_step = parts_.train.steps_in_epoch(position_.epoch),
               .settled_before = settled_.steps,
               .processor = processor_account(),
               .communication_without_core = communication_without_core()};
  run.compute_without_core = compute_without_core();
  if (options_.max_steps > 0)
    run.end_step = std::min(run.end_step, run.first_step + options_.max_steps - position_.step);
  if (SharedSteps* const shared = end_->shared_steps())
    shared->begin_epoch(run.first_step, run.end_step - run.first_step);
  return run;
}

double Trainer::samples_per_second(const EpochRun& run) const {
  const std::int64_t steps =
      in_lockstep() ? settled_.steps - run.settled_before : position_.epoch_step - run.first_step;
  return static_cast<double>(parts_.train.samples_in(run.first_step, run.first_step + steps)) /
         (seconds_between(run.begin_ns, now_ns()) - run.pause_seconds);
}

EpochRecord Trainer::record_of(const EpochRun& run) {
  const StepAccount account = take_account();
  const auto rank = static_cast<std::size_t>(parts_.communicator.rank());
  const std::int64_t steps =
      steps_by_rank_.empty() ? position_.epoch_step - run.first_step : steps_by_rank_[rank];
  EpochRecord record{.epoch = position_.epoch + 1,
                     .step = position_.step,
                     .steps = steps,
                     .samples = parts_.train.samples_in(run.first_step, position_.epoch_step),
                     .learning_rate = learning_rate_at(position_.step - 1),
                     .samples_per_second = samples_per_second(run),
                     .train_seconds = seconds_between(run.begin_ns, clock_.taken_ns()) - run.pause_seconds,
                     .loss_scale = settled_.loss_scale,
                     .account = account,
                     .steps_by_rank = steps_by_rank_,
                     .evaluations_within = run.evaluations,
                     .within_seconds = run.pause_seconds,
                     .evaluation_seconds = run.pause_seconds,
                     .metrics_seconds = run.metrics_seconds};
  double& rest = record.account[Phase::rest];
  rest = std::max(0.0, rest - run.pause_seconds);
  record.without_core_seconds = compute_without_core() - run.compute_without_core;
  record.processor = processor_account() - run.processor;
  record.skipped_steps = skipped_on_all_ranks();
  record.train_loss = over_ranks(parts_.communicator.host(), settled_.losses).mean();
  // On a ring a rank may have taken no step.
  if (parts_.communicator.size() > 1 &&
      first_rank_where(parts_.communicator.host(), ledger_->has_steps()) >= 0) {
    record.ledger = ledger_->take(least_over_ranks(parts_.communicator.host(), ledger_->durations()));
    record.communication_without_core = communication_without_core() - run.communication_without_core;
  }
  return record;
}

}  // namespace lockstep
