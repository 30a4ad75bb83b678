// SPDX-License-Identifier: Apache-2.0
//
// How a Trainer ends a training whose gradients are not finite: how it finds the origin, and what it saves
// for a resume.
#include <optional>
#include <vector>

#include "comm/agreement.h"
#include "comm/codecs/kept_memory.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/train/trainer.h"
#include "launch/train/watch/not_finite_search.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

std::vector<int> ranks_with(Communicator& host, bool mine) {
  return ranks_without(0, gather_values(host, mine ? 1 : 0));
}

// ranks: those whose loss is not finite.
std::string what_is_not_finite(const std::vector<int>& ranks) {
  return ranks.empty() ? "the gradient is not finite, the loss is finite on every rank"
                       : "the loss is not finite on " + named_ranks(ranks);
}

}  // namespace

// Names the ranks whose loss is not finite, if all ranks learn of the step at the same time.
void Trainer::report_skipped(const StepVerdict& verdict) {
  if (end_->kind_of(verdict.step - 1) != StepKind::synchronous) {
    return log::warning(
        "step {} skipped by this rank: its gradients are not finite ({} in a row, "
        "train.max_skipped_steps = {})",
        verdict.step, settled_.bad_in_a_row, options_.max_skipped_steps);
  }
  const std::vector<int> ranks = ranks_with(parts_.communicator.host(), !verdict.loss_finite);
  log::shared_warning("step {} skipped: {} ({} in a row, train.max_skipped_steps = {})", verdict.step,
                      what_is_not_finite(ranks), settled_.bad_in_a_row, options_.max_skipped_steps);
}

Trainer::StepPosition Trainer::position_before(std::int64_t step) const {
  const std::int64_t back = position_.step - (step - 1);
  StepPosition at{.step = step - 1, .epoch = position_.epoch, .epoch_step = position_.epoch_step - back};
  while (at.epoch_step < 0) at.epoch_step += parts_.train.steps_in_epoch(--at.epoch);
  return at;
}

// Computes the step again on this rank's batch; with synchronised batch norm, all ranks do so together.
// Changes gradients, but neither parameters nor other training state. On a ring the samples of a step are not
// known.
std::string Trainer::find_not_finite(std::int64_t step) {
  if (!in_lockstep()) return {};
  end_->finish();
  Network& network = parts_.network;
  stream_.synchronize();
  NotFiniteSearch search(network, stream_);
  search.check_state();
  network.keep_statistics(stream_);
  const StepPosition at = position_before(step);
  train_.seek(at.epoch, at.epoch_step);
  train_.begin(stream_, StepSlot{});
  for (std::int64_t micro = 0; micro < options_.accumulation; ++micro) {
    const Pass pass{.stream = stream_,
                    .mode = Mode::training,
                    .gradient_scale = gradient_scale(),
                    .loss_scale = parts_.optimizer.loss_scale(),
                    .gradients = micro == 0 ? Write::overwrite : Write::accumulate,
                    .observer = &search,
                    .across = parts_.across};
    network.forward(train_.next(), pass);
    search.check_loss(network.loss(stream_).loss);
    network.backward(pass);
  }
  network.restore_statistics(stream_);
  stream_.synchronize();
  train_.seek(position_.epoch, position_.epoch_step);
  return search.found();
}

void Trainer::stop_not_finite(const StepFailure& failure) {
  end_->finish();  // ends the following step, which is skipped, too
  Communicator& host = parts_.communicator.host();
  const std::vector<int> ranks = ranks_with(host, !failure.loss_finite);
  const std::string what = what_is_not_finite(ranks);
  std::string where = describe_origin(host, settled_.not_finite_origin);
  if (where.empty() && !end_->traits().judges_alone)
    where = "; when each rank repeated the step on its own batch, all values were finite";
  for (TrainingObserver* each : observers_) each->step_failed();
  const std::string saved = save_last_good(failure.step);
  throw_agreed(
      Error(exit_code::failed, fmt::format("step {}: {}{}; lower optimizer.learning_rate or check the data{}",
                                           failure.step, what, where, saved)));
}

// Ranks that judge alone have looked for the origin when they settled the step.
void Trainer::share_state(StateUse use) {
  const std::optional<StepFailure> failure = end_->share_state(use, position_.step);
  if (!failure) return;
  if (!end_->traits().judges_alone && settled_.not_finite_origin.empty())
    settled_.not_finite_origin = find_not_finite(failure->step);
  stop_not_finite(*failure);
}

// On a GPU the next step is already enqueued; if it is skipped, it restores the statistics, too.
std::string Trainer::save_last_good(std::int64_t failed_step) {
  const bool average = end_->kind_of(failed_step - 1) != StepKind::synchronous;
  if (average) end_->share_state(StateUse::last_good, failed_step);
  const bool next_done = settled_.steps < position_.enqueued &&
                         results_.result(StepSlot::of(settled_.steps)).control.finite != 0;
  stream_.synchronize();
  if (!share_finite_state()) return "; nothing was saved, because no rank has finite parameters";
  std::string saved;
  if (!options_.last_good.empty()) {
    average_statistics();
    stream_.synchronize();
    const std::string problem = write_last_good();
    if (!problem.empty())
      saved = fmt::format("; the network's state cannot be saved: {}", problem);
    else if (average)
      saved = fmt::format("; {} holds the last average of all ranks", options_.last_good.string());
    else
      saved = fmt::format("; the network's state {} is in {}",
                          next_done ? fmt::format("after step {}", failed_step + 1) : "before this step",
                          options_.last_good.string());
  }
  if (observers_.empty() || average || !end_->traits().skip_restores_state) return saved;
  return_to_last_good(failed_step, next_done);
  for (TrainingObserver* each : observers_) saved += each->save_last_good();
  return saved;
}

// Returns why rank 0 could not write the file; empty on other ranks, whose text is not shown.
std::string Trainer::write_last_good() {
  if (parts_.communicator.rank() != 0) return {};
  try {
    StateSnapshot(parts_.network).save(options_.last_good, {.links = Links::replace});
  } catch (const IoError& error) {
    return error.what();
  }
  return {};
}

// Ranks share this state, so values that are not finite on one rank can be replaced by another rank's.
bool Trainer::share_finite_state() {
  Network& network = parts_.network;
  Communicator& communicator = parts_.communicator;
  NotFiniteSearch search(network, stream_);
  search.check_state();
  const std::vector<int> sound = ranks_with(communicator.host(), search.found().empty());
  if (sound.empty()) return false;
  if (static_cast<int>(sound.size()) == communicator.size()) return true;
  const std::span<float> average = average_ ? average_->values() : std::span<float>();
  // With a sharded exchange each rank has another part of the optimizer's state.
  const std::span<float> moments =
      parts_.optimizer.shares_elements() ? std::span<float>() : parts_.optimizer.state();
  for (const std::span<float> state : {network.values(), network.frozen(), moments, average})
    if (!state.empty()) communicator.broadcast(state.data(), state.size(), DType::f32, sound.front());
  communicator.stream().synchronize();
  network.copy_weights(stream_);
  stream_.synchronize();
  log::shared_warning("ranks whose parameters were not finite now have the parameters of rank {}",
                      sound.front());
  return true;
}

// No step is under way afterwards.
void Trainer::return_to_last_good(std::int64_t failed_step, bool next_done) {
  // settle() counts the failed step only with a dynamic loss scale.
  const bool dynamic = parts_.optimizer.loss_scale_options().dynamic();
  if (next_done) {
    for (const LossSums& sums : results_.result(StepSlot::of(settled_.steps)).losses)
      settled_.losses.add(sums);
    if (!dynamic) ++settled_.skipped;
    settled_.bad_in_a_row = 0;
  } else {
    const StepPosition before = position_before(failed_step);
    const std::int64_t undone = position_.step - before.step;
    take_back_skipped(parts_.buckets.exchange(), undone, stream_);
    settled_.undone += undone;
    static_cast<StepPosition&>(position_) = before;
    if (dynamic) --settled_.skipped;
    --settled_.bad_in_a_row;
  }
  settled_.steps = position_.enqueued;
}

}  // namespace lockstep
