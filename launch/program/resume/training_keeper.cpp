// SPDX-License-Identifier: Apache-2.0
#include "launch/program/resume/training_keeper.h"

#include <algorithm>
#include <cmath>
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
#include "launch/train/watch/replicas.h"

namespace lockstep {
namespace {

constexpr const char* kThreads = "run.threads";
constexpr const char* kPlannedThreads = "run.planned_threads";

// The command that resumes the training, without the launcher's arguments except the number of ranks.
std::string command_that_goes_on(int ranks) {
  std::vector<std::string> words;
  const std::vector<std::string> given = own_arguments();
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--resume" || given[i] == "--init") {
      ++i;
    } else if (!given[i].starts_with("--resume=") && !given[i].starts_with("--init=")) {
      words.push_back(given[i]);
    }
  }
  words.insert(words.end(), {"--resume", "auto"});
  return command_of_ranks(ranks, words);
}

// The same number of threads gives the same bits.
void take_saved_threads(const SavedTraining& saved, TrainingSetup& training) {
  const auto threads = static_cast<int>(saved.number(kThreads));
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

}  // namespace

void go_on_from(const SavedTraining& saved, const ResumeFlags& flags, Communicator& host,
                TrainingSetup& training, Trainer& trainer) {
  run_agreed(host, [&] {
    const std::string data = describe_data(training.train_set(), training.test_set());
    if (data != saved.manifest.data && std::ranges::count(flags.with, "data.path") == 0) {
      throw ConfigError(
          fmt::format("{} belongs to a training on other data: it had {}, data.path has {}; set data.path to "
                      "the saved data, or accept the difference with --resume-with data.path",
                      saved.folder.string(), saved.manifest.data, data));
    }
  });
  StateCopy state = saved.state;
  if (saved.manifest.ranks != host.size()) {
    log::info("the checkpoint has {}, training resumes with {}: the same samples in the same order",
              counted(saved.manifest.ranks, "rank"), host.size());
    const std::vector<ExchangeState> mine = training.buckets().exchange().state();
    if (!saved.exchange.empty())
      std::ranges::move(deal(saved.exchange, mine, host), std::back_inserter(state.tensors));
  }
  run_agreed(host, [&] {
    StateWriter writer(training.network().device(), state);
    trainer.visit_state(writer);
    if (saved.manifest.ranks == host.size()) take_saved_threads(saved, training);
  });
}

void tell_changed_rate(const SavedTraining& saved, const TrainingSetup& training, const Registry& registry) {
  std::vector<std::string> settings;
  for (const KeyDifference& each : differences(saved.manifest.config, ""))
    settings.push_back(each.key + "=" + each.value);
  const Schedule before = training.schedule_of(config_of(settings, registry)), now = training.schedule();
  const std::int64_t steps = saved.manifest.steps;
  const double kept = before.at(steps), next = now.at(steps);
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
                    .config = std::move(config_text),
                    .test_accuracy = {},
                    .files = {}};
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
                              .waiting = std::move(calls.waiting)},
      config.checkpoints, config.run_dir, std::move(manifest));
}

std::string stopped_line(const CheckpointKeeper& keeper, std::int64_t steps, int ranks) {
  const char* signal = signal_name(keeper.stopped_by());
  if (!keeper.problem().empty()) {
    throw_agreed(IoError(fmt::format("{}: training stopped after step {}, which could not be saved: {}",
                                     signal, steps, keeper.problem())));
  }
  return fmt::format("{}: training stopped after step {}, which is saved in {}. To resume: {}", signal, steps,
                     keeper.last().string(), command_that_goes_on(ranks));
}

}  // namespace lockstep
