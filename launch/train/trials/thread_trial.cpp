// SPDX-License-Identifier: Apache-2.0
#include "launch/train/trials/thread_trial.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "comm/agreement.h"
#include "core/text/text.h"
#include "core/timeline.h"
#include "launch/train/quantile.h"
#include "models/state_copy.h"

namespace lockstep {
namespace {

// The shortest training, in steps, for which the trial's 30 steps are at most 3 %.
constexpr std::int64_t kLeastSteps = 1000;

// Seconds per step of the slowest rank. New threads start in a first step that is not timed.
double seconds_of_turn(Trainer& trainer, Communicator& host, std::int64_t steps) {
  trainer.step();
  host.complete({.kind = CollectiveKind::barrier});
  const std::int64_t begin = now_ns();
  for (std::int64_t step = 0; step < steps; ++step) trainer.step();
  const double mine = seconds_since(begin) / static_cast<double>(steps);
  return std::ranges::max(gather_values(host, mine));
}

}  // namespace

ThreadTrial try_sparing_a_core(Trainer& trainer, Backend& backend, Communicator& host, int threads,
                               const ThreadTrialOptions& options) {
  const std::int64_t step = current_step();
  StateReader before({});
  trainer.visit_state(before);
  trainer.hold_codecs(true);
  const int spared = std::max(1, threads - 1);
  std::vector<double> with_all, with_spared;
  for (int turn = 0; turn < 2 * options.turns; ++turn) {
    const bool all = (turn + turn / 2) % 2 == 0;  // the order alternates from pair to pair
    backend.set_threads(all ? threads : spared);
    (all ? with_all : with_spared).push_back(seconds_of_turn(trainer, host, options.steps));
  }
  StateWriter after({}, before.copy());
  trainer.visit_state(after);
  trainer.hold_codecs(false);
  set_current_step(step);
  ThreadTrial trial{.all_seconds = median_of(with_all), .spared_seconds = median_of(with_spared)};
  trial.spares = trial.spared_seconds <= (1 - options.least_gain) * trial.all_seconds;
  trial.threads = trial.spares ? spared : threads;
  backend.set_threads(trial.threads);
  return trial;
}

bool sparing_is_open(Communicator& host, int threads, std::int64_t steps) {
  if (host.size() == 1 || steps < kLeastSteps) return false;
  return first_rank_where(host, threads > 1) >= 0;
}

std::string describe(const ThreadTrial& trial, int threads) {
  return fmt::format("train.threads = 0: {} per rank, {}: {:.4g} ms a step with {}, {:.4g} ms with one fewer",
                     counted(trial.threads, "thread"),
                     trial.spares ? "one core is left to communication" : "no core is left to communication",
                     1e3 * trial.all_seconds, counted(threads, "thread"), 1e3 * trial.spared_seconds);
}

}  // namespace lockstep
