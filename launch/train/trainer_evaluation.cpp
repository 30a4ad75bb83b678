// SPDX-License-Identifier: Apache-2.0
//
// A Trainer's evaluations, after epochs and within them.
#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "core/timeline.h"
#include "launch/train/trainer.h"
#include "launch/train/watch/not_finite_search.h"

namespace lockstep {

Evaluation Trainer::evaluate(const EvaluationProgress& progress) {
  return *evaluate_while([&](std::int64_t batch, std::int64_t batches) {
    if (progress) progress(batch, batches);
    return true;
  });
}

std::optional<Evaluation> Trainer::evaluate_for_observers() {
  const auto evaluating = [&](std::int64_t batch, std::int64_t batches) {
    return std::ranges::all_of(observers_,
                               [&](TrainingObserver* each) { return each->evaluating(batch, batches); });
  };
  if (!evaluating(0, parts_.test.steps_in_epoch(0))) return std::nullopt;
  return evaluate_while(evaluating);
}

std::optional<Evaluation> Trainer::evaluate_while(
    const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  set_current_step(0);
  settle_all_but(0);
  clock_.restart();
  share_state(StateUse::evaluation);
  average_statistics();
  std::optional<Evaluation> evaluation;
  with_evaluated_weights([&] { evaluation = evaluate_network(progress); });
  return evaluation;
}

std::optional<Evaluation> Trainer::evaluate_network(
    const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  LossTotals mine;
  if (metrics_) metrics_->begin();
  test_.seek(0, 0);
  const Pass pass{.stream = stream_, .mode = Mode::evaluation};
  const std::int64_t steps = parts_.test.steps_in_epoch(0);
  for (std::int64_t step = 0; step < steps; ++step) {
    test_.begin(stream_, StepSlot::of(step));
    const Batch& batch = test_.next();
    parts_.network.forward(batch, pass);
    if (metrics_) metrics_->count(batch);
    test_.prefetch(StepSlot::of(step + 1));
    mine.add(parts_.network.loss(stream_));
    if (metrics_) metrics_->counted();
    if (!progress(step + 1, steps)) return std::nullopt;
  }
  mine.left_out = parts_.test.left_out();
  const LossTotals all = over_ranks(parts_.communicator.host(), mine);
  warn_unless_finite(all);
  const double samples = static_cast<double>(all.samples);
  Evaluation evaluation{
      .loss = all.mean(),
      .accuracy = static_cast<double>(all.correct) / samples,
      .samples = parts_.network.has_masks() ? parts_.test.dataset().size() - all.left_out : all.samples};
  if (metrics_) evaluation.metrics = metrics_->finish(all.samples);
  return evaluation;
}

// Collective. Checks the state as well as the loss, because an infinite variance gives zeros and a finite
// loss.
void Trainer::warn_unless_finite(const LossTotals& all) {
  NotFiniteSearch search(parts_.network, stream_);
  search.check_state();
  if (!std::isfinite(all.loss)) {
    test_.seek(0, 0);
    const Pass pass{.stream = stream_, .mode = Mode::evaluation, .observer = &search};
    const std::int64_t steps = parts_.test.steps_in_epoch(0);
    for (std::int64_t step = 0; step < steps && search.found().empty(); ++step) {
      test_.begin(stream_, StepSlot::of(step));
      parts_.network.forward(test_.next(), pass);
      search.check_loss(parts_.network.loss(stream_).loss);
    }
  }
  const std::string where = describe_origin(parts_.communicator.host(), search.found());
  if (!where.empty()) log::shared_warning("the evaluation is not finite{}", where);
}

// Waits, so that later work on any stream sees the swapped parameters.
void Trainer::swap_average() {
  average_->swap(stream_);
  stream_.synchronize();
}

void Trainer::with_evaluated_weights(const std::function<void()>& work) {
  settle_all_but(0);
  if (!average_) return work();
  swap_average();
  try {
    work();
  } catch (...) {
    swap_average();  // training may continue, and checkpoints are saved
    throw;
  }
  swap_average();
}

bool Trainer::evaluate_epoch(EpochRecord& record) {
  const std::int64_t every = options_.evaluate_epochs;
  const bool due = stopped() || record.epoch >= options_.epochs || (every > 0 && record.epoch % every == 0);
  if (!due) return true;
  const std::int64_t begin = now_ns();
  record.evaluation = evaluate_for_observers();
  if (!record.evaluation) return false;
  record.evaluation_seconds += seconds_between(begin, now_ns());
  if (record.evaluation->metrics) record.metrics_seconds += record.evaluation->metrics->seconds;
  return true;
}

// Excludes the time of the pause from the times of the epoch's steps.
bool Trainer::pause_to_evaluate(EpochRun& run) {
  const std::int64_t begin = now_ns();
  const double compute_before = compute_without_core();
  const double communication_before = communication_without_core();
  const ProcessorAccount processor = processor_account();
  const std::optional<Evaluation> evaluation = evaluate_for_observers();
  if (!evaluation) return false;
  const EvaluationRecord record{.epoch = position_.epoch + 1,
                                .step = position_.step,
                                .evaluation = *evaluation,
                                .seconds = seconds_between(begin, now_ns())};
  for (TrainingObserver* each : observers_) each->evaluated_within(record);
  ++run.evaluations;
  if (evaluation->metrics) run.metrics_seconds += evaluation->metrics->seconds;
  run.compute_without_core += compute_without_core() - compute_before;
  run.communication_without_core += communication_without_core() - communication_before;
  run.processor = run.processor - (processor - processor_account());
  run.pause_seconds += seconds_between(begin, now_ns());
  return true;
}

void Trainer::prepare_to_save() {
  settle_all_but(0);
  for (TrainingObserver* each : observers_) each->saving();
  share_state(StateUse::checkpoint);
  average_statistics();
  stream_.synchronize();
}

// Averages the evaluation statistics; training's own do not change.
void Trainer::average_statistics() {
  parts_.network.copy_statistics(stream_);
  if (parts_.step_statistics != nullptr) return;  // already averaged over ranks
  average_over_ranks(stream_, parts_.communicator, parts_.network.evaluation_statistics(),
                     parts_.communicator.size());
}

}  // namespace lockstep
