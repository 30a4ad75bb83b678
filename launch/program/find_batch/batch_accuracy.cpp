// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/batch_accuracy.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/program/setup/bench.h"

namespace lockstep {
namespace {

struct TrialResult {
  std::int64_t steps = 0;
  double accuracy = 0;
};

}  // namespace

std::vector<BatchAccuracy> compare_accuracy(World& world, const Config& config, const Registry& registry,
                                            const std::vector<std::int64_t>& batches,
                                            const AsConfigured& configured, std::int64_t epochs,
                                            const std::function<void(const std::string& what)>& begins) {
  const log::Quiet quiet(log::Quiet::Scope::process);
  Datasets datasets;
  // Trains up to the first limit, possibly within an epoch. 0 steps: no limit.
  const auto train = [&](Config other, std::int64_t most_epochs, std::int64_t most_steps) {
    other.trainer.epochs = most_epochs;
    other.trainer.max_steps = most_steps;
    other.until_epoch = 0;
    MeasuredTraining bench(world, other, registry, datasets);
    datasets = bench.training().datasets();
    TrialResult result{.steps = bench.training().length().steps};
    bench.warm_up(result.steps);
    result.accuracy = bench.trainer().evaluate().accuracy;
    return result;
  };
  const auto with_batch = [&](std::int64_t batch) {
    Config other = config;
    other.loader.batch = batch;
    other.schedule.learning_rate = configured.rate_for(batch * configured.accumulation * configured.ranks);
    if (other.schedule.learning_rate > configured.learning_rate)
      other.schedule.warmup_epochs = std::max(other.schedule.warmup_epochs, configured.gentle_warmup);
    return other;
  };
  std::optional<std::int64_t> steps;  // of the reference
  std::vector<BatchAccuracy> found;
  for (const std::int64_t batch : batches) {
    const Config other = with_batch(batch);
    BatchAccuracy each{.batch = batch, .learning_rate = other.schedule.learning_rate, .epochs = epochs};
    try {
      begins(fmt::format("batch {} for {}", batch, counted(epochs, "epoch")));
      const TrialResult by_epochs = train(other, epochs, 0);
      TrialResult by_steps = by_epochs;
      if (steps) {
        begins(fmt::format("batch {} for {}", batch, counted(*steps, "step")));
        by_steps = train(other, *steps, *steps);
      } else {
        steps = by_epochs.steps;
      }
      each.steps_of_epochs = by_epochs.steps;
      each.of_epochs = by_epochs.accuracy;
      each.steps = by_steps.steps;
      each.of_steps = by_steps.accuracy;
    } catch (const Error& error) {
      if (!error.agreed()) throw;
      each.problem = error.what();
    }
    found.push_back(each);
  }
  std::ranges::sort(found, {}, &BatchAccuracy::batch);
  return found;
}

}  // namespace lockstep
