// SPDX-License-Identifier: Apache-2.0
#include "launch/program/resume/training_keeper.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/job_signals.h"
#include "core/text/text.h"
#include "launch/program/mpirun.h"
#include "launch/program/own_command.h"
#include "launch/program/version.h"
#include "launch/train/checkpoint/other_ranks.h"
#include "launch/train/step_ends/delayed_gradients.h"
#include "launch/train/watch/replicas.h"
#include "models/network_state.h"
#include "models/state_copy.h"
#include "models/weight_average.h"

namespace lockstep {
namespace {

constexpr const char* kThreads = "run.threads";
constexpr const char* kPlannedThreads = "run.planned_threads";
constexpr const char* kEpochStepName = "train.epoch_step";
constexpr const char* kLossScaleName = "optimizer.loss_scale";
constexpr const char* kGoodStepsName = "optimizer.good_steps";
constexpr const char* kOptimizerKey = "optimizer.name";

// The same number of threads gives the same bits.
void take_saved_threads(const SavedTraining& saved, TrainingSetup& training) {
  const int threads = std::min(static_cast<int>(saved.number(kThreads)), training.planned_threads());
  const std::int64_t planned = saved.number(kPlannedThreads);
  if (threads < 1) return;
  if (planned != training.planned_threads()) {
    log::warning(
        "the saved training had {} compute threads on this rank, now there are {}: results may differ "
        "in rounding",
        planned, training.planned_threads());
    return;
  }
  backend_for(training.network().device()).set_threads(threads);
  training.set_threads(threads);
}

// A checkpoint within an epoch: another global batch continues at the same sample. With fewer samples the
// epoch may already be over.
void take_place_in_epoch(const SavedTraining& saved, const BatchLoader& loader, StateCopy& state) {
  const std::int64_t before = saved.manifest.global_batch, now = loader.global_batch();
  const auto place = std::ranges::find(state.values, kEpochStepName, &StateCopy::Value::name);
  if (place == state.values.end()) return;
  auto* const step = std::get_if<std::int64_t>(&place->value);
  if (step == nullptr) return;
  const std::int64_t epoch = saved.number("train.epoch");
  const std::optional<std::int64_t> same = loader.step_after(epoch, *step, before);
  if (!same)
    throw ConfigError(fmt::format(
        "{} was saved in epoch {} after {} steps of {} samples, where none of this training's {} steps of {} "
        "samples begins; resume with the saved data and number of samples per step, or from a checkpoint "
        "after an epoch's evaluation",
        saved.folder.string(), epoch + 1, *step, before, loader.steps_in_epoch(epoch), now));
  *step = *same;
}

// A changed precision or rule begins with its own loss scale, and not with the saved one. Gradients under way
// are saved times their own, which is divided out: DelayedGradients multiplies them by the new one.
void forget_changed_scale(const SavedTraining& saved, const std::string& toml, StateCopy& state) {
  constexpr std::string_view kKeys[] = {"train.precision", "train.loss_scale", "train.loss_scale_interval"};
  const std::vector<KeyDifference> changes = differences(saved.manifest.config, toml);
  if (std::ranges::none_of(changes, [&](const KeyDifference& each) {
        return std::ranges::find(kKeys, each.key) != std::end(kKeys);
      }))
    return;
  constexpr double kFirst = std::numeric_limits<double>::quiet_NaN();
  double divisor = 1;
  for (StateCopy::Value& each : state.values) {
    if (each.name == kLossScaleName) each.value = kFirst;
    if (each.name == kGoodStepsName) each.value = std::int64_t{0};
    const double* const scale = std::get_if<double>(&each.value);
    // 0: no gradients are under way.
    if (each.name != DelayedGradients::kLossScale || scale == nullptr || !(*scale > 0)) continue;
    divisor = *scale;
    each.value = kFirst;
  }
  for (StateCopy::Tensor& each : state.tensors) {
    if (!each.name.ends_with(DelayedGradients::kGradientSuffix)) continue;
    for (float& value : each.values) value = static_cast<float>(value / divisor);
  }
}

// Another optimizer starts with the state of a new training, even if the saved one has the same names: SGD's
// momentum and that of LARS differ by the trust ratio. The loss scale stays. Collective.
void begin_changed_optimizer(const SavedTraining& saved, const std::string& toml, TrainingSetup& training,
                             StateCopy& state) {
  const std::vector<KeyDifference> changes = differences(saved.manifest.config, toml);
  const auto change = std::ranges::find(changes, kOptimizerKey, &KeyDifference::key);
  if (change == changes.end()) return;
  log::info("{} = {}: the checkpoint is of {}, so the optimizer starts as in a new training", kOptimizerKey,
            change->other, change->value);
  StateReader initial(training.network().device());
  training.optimizer().visit_state(initial);
  std::vector<StateCopy::Tensor>& tensors = initial.copy().tensors;
  std::erase_if(state.tensors, [&](const StateCopy::Tensor& each) {
    return std::ranges::find(tensors, each.name, &StateCopy::Tensor::name) != tensors.end();
  });
  std::ranges::move(tensors, std::back_inserter(state.tensors));
  for (StateCopy::Value& each : state.values)
    if (each.name == Optimizer::kSteps) each.value = std::int64_t{0};
}

// Gives the gradient exchange its state, which is named after the ranges of elements that a rank has. They
// depend on the ranks, their nodes and the buckets. Collective. Returns the name of saved state that has no
// place on any rank and is not in `state`, or "".
std::string take_exchange(const SavedTraining& saved, Communicator& host, TrainingSetup& training,
                          StateCopy& state) {
  const std::vector<ExchangeState> mine = training.buckets().exchange().state();
  const auto is_in = [](const std::vector<StateCopy::Tensor>& tensors, const ExchangeState& piece) {
    return std::ranges::any_of(tensors, [&](const StateCopy::Tensor& tensor) {
      return tensor.name == piece.name && tensor.scope == piece.scope && tensor.shape == piece.memory.shape;
    });
  };
  const bool lacks =
      !std::ranges::all_of(mine, [&](const ExchangeState& piece) { return is_in(state.tensors, piece); });
  const ExchangeNames names(mine, host);
  const auto homeless =
      std::ranges::find_if(saved.exchange, [&](const auto& piece) { return !names.contains(piece.first); });
  const std::string dropped = homeless == saved.exchange.end() ? "" : homeless->first;
  if (first_rank_where(host, lacks) < 0) return dropped;
  MergedExchange merged = saved.exchange;
  if (saved.manifest.ranks == host.size())
    run_agreed(host, [&] { merged = merged_exchange(saved.folder, saved.manifest); });
  std::vector<StateCopy::Tensor> dealt;
  if (!merged.empty()) dealt = deal(merged, mine, host);
  std::erase_if(state.tensors, [&](const StateCopy::Tensor& tensor) {
    const std::string base = base_of(tensor.name);
    return tensor.scope == StateScope::per_rank && merged.contains(base) && names.contains(base);
  });
  StateReader initial(training.network().device());
  for (const ExchangeState& piece : mine)
    if (!is_in(dealt, piece)) initial.tensor(piece.tensor(), piece.scope);
  if (first_rank_where(host, !initial.copy().tensors.empty()) >= 0)
    log::shared_warning(
        "the checkpoint has no state for some codecs of this training, which start as in a new training{}",
        initial.copy().tensors.empty() ? "" : fmt::format(" ({})", initial.copy().tensors.front().name));
  std::ranges::move(dealt, std::back_inserter(state.tensors));
  std::ranges::move(initial.copy().tensors, std::back_inserter(state.tensors));
  return dropped;
}

// The average of the weights starts from the saved weights if the saved training had none.
void begin_average(std::span<const Parameter> parameters, StateCopy& state) {
  std::vector<StateCopy::Tensor> averages;
  for (const StateCopy::Tensor& each : state.tensors) {
    if (each.scope != StateScope::replicated) continue;
    if (each.name.ends_with(WeightAverage::kSuffix)) return;
    if (std::ranges::find(parameters, each.name, &Parameter::name) == parameters.end()) continue;
    averages.push_back(each);
    averages.back().name += WeightAverage::kSuffix;
  }
  log::info("the checkpoint has no averaged weights (train.ema_decay): the average starts from its weights");
  std::ranges::move(averages, std::back_inserter(state.tensors));
}

void require_same_data(const SavedTraining& saved, const ResumeFlags& flags, TrainingSetup& training) {
  const std::string data = describe_data(training.train_set(), training.test_set());
  if (data == saved.manifest.data || std::ranges::count(flags.with, "data.path") > 0) return;
  throw ConfigError(
      fmt::format("{} belongs to a training on other data: it had {}, data.path has {}; set data.path to "
                  "the saved data, or accept the difference with --resume-with data.path",
                  saved.folder.string(), saved.manifest.data, data));
}

// The keys of the network may differ (--resume-with), its tensors may not. Restores the network.
void require_same_network(const SavedTraining& saved, Network& network) {
  try {
    restore_network(network, saved.state);
  } catch (const DataError& error) {
    throw ConfigError(
        fmt::format("{} is of another network: {}; set the saved values of the keys in model and data",
                    saved.folder.string(), error.what()));
  }
}

// Collective.
void restore(const SavedTraining& saved, Communicator& host, TrainingSetup& training, Trainer& trainer,
             StateCopy state) {
  if (trainer.weight_average() != nullptr) begin_average(training.network().parameters(), state);
  run_agreed(host, [&] {
    StateWriter writer(training.network().device(), state);
    trainer.visit_codecs(writer);
  });
  std::string dropped = take_exchange(saved, host, training, state);
  run_agreed(host, [&] {
    StateWriter writer(training.network().device(), state);
    trainer.visit_state(writer);
    const std::vector<std::string> unused = writer.unused(StateScope::per_rank);
    if (!unused.empty()) dropped = unused.front();
    if (saved.manifest.ranks == host.size()) take_saved_threads(saved, training);
  });
  if (first_rank_where(host, !dropped.empty()) >= 0)
    log::shared_warning(
        "saved state of each rank, such as gradients that a codec has not sent yet{}, has no place in this "
        "training and is dropped",
        dropped.empty() ? "" : fmt::format(" ({})", dropped));
}

}  // namespace

void go_on_from(const SavedTraining& saved, const ResumeFlags& flags, const std::string& toml,
                Communicator& host, TrainingSetup& training, Trainer& trainer) {
  StateCopy state = saved.state;
  run_agreed(host, [&] {
    require_same_data(saved, flags, training);
    require_same_network(saved, training.network());
    take_place_in_epoch(saved, training.train_loader(), state);
    forget_changed_scale(saved, toml, state);
  });
  begin_changed_optimizer(saved, toml, training, state);
  if (saved.manifest.ranks != host.size())
    log::info("the checkpoint has {}, training resumes with {}: the same samples in the same order",
              counted(saved.manifest.ranks, "rank"), host.size());
  restore(saved, host, training, trainer, std::move(state));
}

void restore_for_evaluation(const SavedTraining& saved, const ResumeFlags& flags, Communicator& host,
                            TrainingSetup& training, Trainer& trainer) {
  run_agreed(host, [&] {
    require_same_data(saved, flags, training);
    require_same_network(saved, training.network());
    if (WeightAverage* const average = trainer.weight_average()) {
      StateCopy state = saved.state;
      begin_average(training.network().parameters(), state);
      StateWriter writer(training.network().device(), state);
      average->visit_state(writer);
    }
    if (saved.manifest.ranks == host.size()) take_saved_threads(saved, training);
  });
}

void tell_changed_rate(const SavedTraining& saved, TrainingSetup& training, const Trainer& trainer,
                       const Registry& registry) {
  std::vector<std::string> settings;
  for (const KeyDifference& each : differences(saved.manifest.config, ""))
    if (!each.key.starts_with("run.")) settings.push_back(each.key + "=" + each.value);
  Config config;
  try {
    config = config_of(settings, registry);
  } catch (const ConfigError&) {
    return;  // an earlier version saved settings that are refused now
  }
  const std::int64_t batch = saved.manifest.global_batch, epoch = saved.number("train.epoch");
  const Schedule before = training.schedule_of(config, batch), now = training.schedule();
  const std::int64_t steps =
      before.place(saved.manifest.steps,
                   training.train_loader().steps_before(epoch, batch) + saved.number(kEpochStepName));
  const double kept = before.at(steps), next = trainer.next_learning_rate();
  if (std::abs(next - kept) <= 1e-6 * std::max(std::abs(next), std::abs(kept))) return;
  log::shared_warning(
      "the learning rate was {:.4g} in step {} and is {:.4g} in the next step, where the saved training "
      "would have {:.4g}: its schedule has {} steps, this one has {}",
      before.at(std::max<std::int64_t>(steps - 1, 0)), steps, next, kept, before.total_steps,
      now.total_steps);
}

TrainingKeeper::TrainingKeeper(const Config& config, std::string config_text, Communicator& host,
                               TrainingSetup& training, Trainer& trainer, Calls calls)
    : threads_(training.threads()), planned_threads_(training.planned_threads()) {
  StopSignals& signals = StopSignals::of_process();
  signals.allow_grace(config.checkpoints.grace_seconds);
  const Device device = training.network().device();
  Manifest manifest{.lockstep = kVersion,
                    .ranks = host.size(),
                    .global_batch = training.train_loader().global_batch(),
                    .device = device.kind == DeviceKind::cpu ? "cpu" : "cuda",
                    .data = describe_data(training.train_set(), training.test_set()),
                    .kernels = training.kernels(),
                    .config = std::move(config_text)};
  keeper_ = std::make_unique<CheckpointKeeper>(
      CheckpointKeeper::Parts{.trainer = trainer,
                              .host = host,
                              .signals = signals,
                              .device = device,
                              .compares = host.size() > 1 && config.compared_every() > 0,
                              .also =
                                  [this, also = std::move(calls.also)](StateVisitor& visitor) {
                                    also(visitor);
                                    visitor.value(kThreads, StateScope::per_rank, &threads_);
                                    visitor.value(kPlannedThreads, StateScope::per_rank, &planned_threads_);
                                  },
                              .waiting = std::move(calls.waiting),
                              .lines = std::move(calls.lines)},
      config.checkpoints, config.run_dir, std::move(manifest));
}

StoppedLines stopped_lines(const CheckpointKeeper& keeper, std::int64_t steps, int ranks) {
  const char* signal = signal_name(keeper.stopped_by());
  if (!keeper.problem().empty()) {
    throw_agreed(IoError(fmt::format("{}: training stopped after step {}, which could not be saved: {}",
                                     signal, steps, keeper.problem())));
  }
  std::vector<std::string> words = own_arguments({"--resume", "--init"});
  words.insert(words.end(), {"--resume", "auto"});
  const std::string hint = remove_secrets(words);
  return {.what = fmt::format("{}: training stopped after step {}, which is saved in {}. To resume{}:",
                              signal, steps, keeper.last().string(), hint.empty() ? "" : " (" + hint + ")"),
          .command = command_of_ranks(ranks, words)};
}

}  // namespace lockstep
