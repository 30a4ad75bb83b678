// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/find_batch.h"

#include <algorithm>
#include <cmath>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/timeline.h"
#include "launch/program/config/config_defaults.h"
#include "launch/program/find_batch/batch_bench.h"

namespace lockstep {
namespace {

// Shares of the time budget: when the search ends, and the time of each later phase.
constexpr double kSearchShare = 0.6;
constexpr double kConfirmShare = 0.15;
constexpr double kNoiseShare = 0.15;
constexpr double kProofShare = 0.2;  // approximate; a pass that is expected to exceed it is not run
constexpr double kFar = 16;
constexpr int kPairs = 2;
constexpr int kConfirmPairs = 5;

class BatchFinder {
 public:
  BatchFinder(World& world, Communicator& control, const Config& config, const Registry& registry,
              const FindBatchOptions& options, const FindBatchTeller& teller)
      : control_(control), options_(options), teller_(teller), bench_(world, control, config, registry) {
    found_.configured = {.batch = config.loader.batch,
                         .automatic = options.automatic,
                         .accumulation = config.loader.accumulation,
                         .ranks = control.size(),
                         .learning_rate = config.schedule.learning_rate,
                         .warmup_epochs = config.schedule.warmup_epochs,
                         .gentle_warmup = gentle_warmup_epochs(config),
                         .scaling = options.scaling,
                         .powers_of_two = config.reproducible && control.size() > 1};
  }

  FoundBatch find() {
    begins("planning memory");
    const BatchLimits limits = bench_.limits();
    found_.multiple = limits.multiple;
    found_.configured.samples = bench_.samples();
    search(limits);
    if (fastest_batch(found_.figures) == nullptr)
      throw_agreed(MemoryError(fmt::format("no batch can be trained: {}", last_problem())));
    if (!options_.only_figures) {
      begins("comparing gradients");
      found_.noise = bench_.measure_noise(kNoiseShare * options_.seconds);
      found_.configured.critical_batch = found_.noise.critical_batch();
      recommend();
      prove_most();
    }
    found_.seconds = elapsed();
    return std::move(found_);
  }

 private:
  // Seconds, equal on every rank.
  double elapsed() { return std::ranges::max(gather_values(control_, seconds_between(begin_ns_, now_ns()))); }

  void begins(const std::string& what) {
    if (teller_.begins) teller_.begins(what, seconds_between(begin_ns_, now_ns()));
  }

  void search(const BatchLimits& limits) {
    BatchSearch search(limits);
    while (const std::optional<std::int64_t> batch =
               search.next(kSearchShare * options_.seconds - elapsed())) {
      begins(fmt::format("batch {}", *batch));
      const BatchFigure figure = bench_.visit(*batch, kPairs);
      search.tell(figure);
      if (teller_.measured) teller_.measured(figure);
    }
    found_.figures = search.figures();
    found_.most = search.most();
  }

  // Measures the chosen batch again, because the result that selected it is biased upwards.
  void recommend() {
    const BatchRecommendation& best = found_.recommended =
        *recommend_batch(found_.figures, found_.configured);
    const bool comparable = found_.configured.figure_in(found_.figures) != nullptr;
    if (!best.changes || !comparable) return;
    begins(fmt::format("batch {} again, to confirm its gain", best.batch));
    found_.ratio =
        bench_.compare(best.batch, best.accumulation, kConfirmPairs, kConfirmShare * options_.seconds);
  }

  std::string last_problem() const {
    return found_.figures.empty() ? fmt::format("memory plan and dataset allow at most batch {}", found_.most)
                                  : found_.figures.front().problem;
  }

  // Sets most_run to the largest measured batch. Returns a rank's seconds per sample at that batch.
  double find_most_run() {
    double seconds = 0;
    for (const BatchFigure& each : found_.figures) {
      if (!each.measured() || each.batch < found_.most_run) continue;
      found_.most_run = each.batch;
      seconds = found_.configured.ranks / each.samples_per_second;
    }
    return seconds;
  }

  // A far larger batch than any run before may take many times longer per sample, because it touches memory
  // for the first time, so a batch in between is run first. If a batch does not fit after all, the next is an
  // eighth smaller.
  void prove_most() {
    double seconds_of_sample = find_most_run();
    const double end = elapsed() + kProofShare * options_.seconds;
    while (found_.most > found_.most_run) {
      const std::int64_t batch = next_to_prove();
      const double begin = elapsed();
      if (begin + seconds_of_sample * static_cast<double>(batch) > end) return;
      begins(fmt::format("batch {}, {}", batch,
                         batch == found_.most ? "the largest by the memory plan" : "to check that it fits"));
      const std::string problem = bench_.prove(batch);
      if (problem.empty()) {
        found_.most_run = batch;
        seconds_of_sample = (elapsed() - begin) / static_cast<double>(batch);
      } else {
        found_.most_problem = problem;
        found_.most = std::max(found_.most_run, multiple_below(0.875 * static_cast<double>(batch)));
      }
    }
  }

  std::int64_t next_to_prove() const {
    const double ratio = static_cast<double>(found_.most) / static_cast<double>(found_.most_run);
    const std::int64_t middle = multiple_below(static_cast<double>(found_.most) / std::sqrt(ratio));
    return ratio > kFar && middle > found_.most_run ? middle : found_.most;
  }

  std::int64_t multiple_below(double batch) const {
    return static_cast<std::int64_t>(batch) / found_.multiple * found_.multiple;
  }

  Communicator& control_;
  FindBatchOptions options_;
  const FindBatchTeller& teller_;
  BatchBench bench_;
  std::int64_t begin_ns_ = now_ns();
  FoundBatch found_;
};

}  // namespace

FoundBatch find_batch(World& world, Communicator& control, const Config& config, const Registry& registry,
                      const FindBatchOptions& options, const FindBatchTeller& teller) {
  return BatchFinder(world, control, config, registry, options, teller).find();
}

}  // namespace lockstep
