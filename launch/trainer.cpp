// SPDX-License-Identifier: Apache-2.0
#include "launch/trainer.h"

#include <cmath>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

NetworkInput input_of(const Batch& batch) {
  return {.images = batch.images, .labels = batch.labels, .weights = batch.weights, .samples = batch.samples};
}

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}

}  // namespace

void LossTotals::add(const LossSums& sums) {
  loss += sums.loss;
  weight += sums.weight;
  correct += sums.correct;
  samples += sums.samples;
}

Trainer::Trainer(const Parts& parts, const Schedule& schedule, const TrainerOptions& options)
    : parts_(parts),
      schedule_(schedule),
      options_(options),
      stream_(parts.network.device(), StreamUse::compute),
      finite_(sizeof(std::int32_t), parts.network.device()) {}

void Trainer::fit(Report& report) {
  for (std::int64_t epoch = 0; epoch < options_.epochs && !stopped(); ++epoch) {
    EpochReport line = train_epoch(epoch, report);
    const std::int64_t begin = now_ns();
    const Evaluation evaluation = evaluate();
    line.test_loss = evaluation.loss;
    line.test_accuracy = evaluation.accuracy;
    line.evaluation_seconds = seconds_between(begin, now_ns());
    report.epoch(line);
  }
}

EpochReport Trainer::train_epoch(std::int64_t epoch, Report& report) {
  totals_ = {};
  take_account();
  const std::int64_t begin = now_ns();
  const std::int64_t first_step = step_;
  const std::int64_t steps = parts_.train.steps_in_epoch(epoch);
  const auto samples_per_second = [&] {
    const auto samples = static_cast<double>((step_ - first_step) * parts_.train.global_batch());
    return samples / seconds_between(begin, now_ns());
  };
  for (std::int64_t i = 1; i <= steps && !stopped(); ++i) {
    step();
    report.step(epoch + 1, i, totals_.mean(), samples_per_second());
  }
  EpochReport line{.epoch = epoch + 1, .steps = step_, .samples_per_second = samples_per_second()};
  line.learning_rate = schedule_.at(step_ - 1);
  line.train_seconds = seconds_between(begin, now_ns());
  line.account = take_account();
  line.train_loss = over_ranks(totals_).mean();
  return line;
}

void Trainer::step() {
  loss_finite_ = true;
  for (std::int64_t micro = 0; micro < options_.accumulation; ++micro) {
    micro_batch(micro == 0, micro + 1 == options_.accumulation);
  }
  clock_.enter(Phase::exposed_communication);
  parts_.buckets.wait(stream_);
  clock_.enter(Phase::optimizer);
  stop_if_not_finite();
  parts_.optimizer.step(stream_, static_cast<float>(schedule_.at(step_)));
  ++step_;
  clock_.enter(Phase::rest);
}

void Trainer::micro_batch(bool first, bool last) {
  clock_.enter(Phase::data_wait);
  const Batch& batch = parts_.train.next();
  const Pass pass{.stream = stream_,
                  .mode = Mode::training,
                  .gradient_scale = 1.0f / static_cast<float>(parts_.train.global_batch()),
                  .gradients = first ? Write::overwrite : Write::accumulate,
                  .listener = last ? &parts_.buckets : nullptr,
                  .observer = parts_.observer};
  const auto span = [&](const char* name, std::int64_t begin) {
    if (parts_.timeline == nullptr) return;
    parts_.timeline->record({.name = name,
                             .track = Track::compute,
                             .index = static_cast<std::int32_t>(step_),
                             .begin_ns = begin,
                             .end_ns = now_ns()});
  };

  clock_.enter(Phase::forward);
  const std::int64_t forward_begin = now_ns();
  parts_.network.forward(input_of(batch), pass);
  const LossSums sums = parts_.network.loss(stream_);
  totals_.add(sums);
  loss_finite_ = loss_finite_ && std::isfinite(sums.loss);
  span("forward", forward_begin);

  clock_.enter(Phase::backward);
  const std::int64_t backward_begin = now_ns();
  if (last) parts_.buckets.begin(stream_);  // full buckets leave while earlier layers still compute
  parts_.network.backward(pass);
  span("backward", backward_begin);
}

// Judged on the reduced gradients: they are the same bits on every rank, so all ranks decide alike without
// asking. A loss that is not finite on one rank makes its gradients, and so the sums, not finite.
void Trainer::stop_if_not_finite() {
  const std::span<float> gradients = parts_.buckets.gradients();
  std::int32_t finite = 1;
  parts_.network.backend().all_finite(stream_, static_cast<std::int64_t>(gradients.size()), gradients.data(),
                                      reinterpret_cast<std::int32_t*>(finite_.data()));
  stream_.copy(&finite, finite_.data(), sizeof(finite));
  stream_.synchronize();
  if (finite != 0) return;

  Communicator& communicator = parts_.communicator.host();
  const std::int32_t mine = loss_finite_ ? 0 : 1;
  std::vector<std::int32_t> flags(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(&mine, flags.data(), 1, DType::i32);
  communicator.stream().synchronize();
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (flags[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
  }
  std::string saved;
  if (!options_.last_good.empty()) {
    if (communicator.rank() == 0) StateSnapshot(parts_.network).save(options_.last_good);
    saved = fmt::format("; the state before this step is in {}", options_.last_good.string());
  }
  const std::string what = ranks.empty()
                               ? "the gradient is not finite (every rank's loss is)"
                               : fmt::format("the loss is not finite on rank {}", fmt::join(ranks, ", "));
  Error error(exit_code::failed,
              fmt::format("step {}: {}; lower optimizer.learning_rate or look at the data{}", step_ + 1, what,
                          saved));
  error.set_agreed();
  throw error;
}

Evaluation Trainer::evaluate() {
  average_statistics();
  LossTotals mine;
  parts_.test.seek(0, 0);
  const Pass pass{.stream = stream_, .mode = Mode::evaluation};
  for (std::int64_t step = parts_.test.steps_in_epoch(0); step > 0; --step) {
    parts_.network.forward(input_of(parts_.test.next()), pass);
    mine.add(parts_.network.loss(stream_));
  }
  const LossTotals all = over_ranks(mine);
  const double samples = static_cast<double>(all.samples);
  return {.loss = all.mean(), .accuracy = static_cast<double>(all.correct) / samples, .samples = all.samples};
}

void Trainer::average_statistics() {
  const std::span<float> statistics = parts_.network.statistics();
  if (statistics.empty()) return;
  Communicator& communicator = parts_.communicator;
  Event ready(parts_.network.device());
  stream_.record(ready);
  communicator.stream().wait(ready);
  communicator.all_reduce(statistics.data(), statistics.size(), DType::f32, ReduceOp::sum);
  communicator.stream().record(ready);
  stream_.wait(ready);
  parts_.network.backend().scale(stream_, static_cast<std::int64_t>(statistics.size()),
                                 1.0f / static_cast<float>(communicator.size()), statistics.data());
}

// In rank order, so that every rank gets the same doubles.
LossTotals Trainer::over_ranks(const LossTotals& mine) {
  Communicator& communicator = parts_.communicator.host();
  std::vector<LossTotals> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(&mine, all.data(), sizeof(LossTotals), DType::u8);
  communicator.stream().synchronize();
  LossTotals sum;
  for (const LossTotals& totals : all) {
    sum.loss += totals.loss;
    sum.weight += totals.weight;
    sum.correct += totals.correct;
    sum.samples += totals.samples;
  }
  return sum;
}

}  // namespace lockstep
