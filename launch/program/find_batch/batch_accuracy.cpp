// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/batch_accuracy.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/text.h"
#include "launch/program/setup/bench.h"

namespace lockstep {
namespace {

class AccuracyTrial {
 public:
  AccuracyTrial(World& world, const Registry& registry) : world_(world), registry_(registry) {}

  struct Result {
    std::int64_t steps = 0;
    double accuracy = 0;
  };
  Result train(const Config& config) {
    MeasuredTraining bench(world_, config, registry_, datasets_);
    datasets_ = bench.training().datasets();
    Result result{.steps = bench.training().length().steps};
    bench.warm_up(result.steps);
    result.accuracy = bench.trainer().evaluate().accuracy;
    return result;
  }

 private:
  World& world_;
  const Registry& registry_;
  Datasets datasets_;
};

Config for_epochs(Config config, std::int64_t epochs) {
  config.trainer.epochs = epochs;
  config.trainer.max_steps = 0;
  return config;
}

// Ends after `steps` steps, possibly within an epoch.
Config for_steps(Config config, std::int64_t steps) {
  config.trainer.epochs = steps;
  config.trainer.max_steps = steps;
  return config;
}

}  // namespace

std::vector<BatchAccuracy> compare_accuracy(World& world, const Config& config, const Registry& registry,
                                            const std::vector<std::int64_t>& batches,
                                            const AsConfigured& configured, std::int64_t epochs,
                                            const std::function<void(const std::string& what)>& begins) {
  const QuietBuilds quiet;
  AccuracyTrial trial(world, registry);
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
      const AccuracyTrial::Result by_epochs = trial.train(for_epochs(other, epochs));
      AccuracyTrial::Result by_steps = by_epochs;
      if (steps) {
        begins(fmt::format("batch {} for {}", batch, counted(*steps, "step")));
        by_steps = trial.train(for_steps(other, *steps));
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
