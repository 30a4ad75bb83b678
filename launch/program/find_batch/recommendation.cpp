// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/recommendation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "launch/observe/terminal/progress_line.h"

namespace lockstep {
namespace {

double rate_by_rule(const AsConfigured& configured, std::int64_t samples) {
  return scaled_rate({.learning_rate = configured.learning_rate,
                      .scaling = configured.scaling,
                      .scale_batch = configured.global_batch()},
                     samples);
}

double noise_limit(const AsConfigured& configured, std::int64_t samples) {
  const double noise = configured.critical_batch;
  const bool known = noise > 0 && std::isfinite(noise);
  if (!known || samples <= configured.global_batch()) return std::numeric_limits<double>::infinity();
  return configured.learning_rate * (1 + noise / static_cast<double>(configured.global_batch())) /
         (1 + noise / static_cast<double>(samples));
}

}  // namespace

RateScaling scaling_for(std::string_view optimizer) {
  return optimizer == "sgd" ? RateScaling::linear : RateScaling::root;
}

const BatchFigure* AsConfigured::figure_in(const std::vector<BatchFigure>& figures) const {
  return automatic ? nullptr : figure_of_batch(figures, batch);
}

double AsConfigured::rate_for(std::int64_t global) const {
  if (scaling == RateScaling::none || global == global_batch()) return learning_rate;
  return std::stod(fmt::format("{:.3g}", std::min(rate_by_rule(*this, global), noise_limit(*this, global))));
}

bool AsConfigured::is_held_back(std::int64_t global) const {
  return scaling != RateScaling::none && noise_limit(*this, global) < rate_by_rule(*this, global);
}

std::optional<BatchRecommendation> recommend_batch(const std::vector<BatchFigure>& figures,
                                                   const AsConfigured& configured) {
  const BatchFigure* peak = fastest_batch(figures);
  if (peak == nullptr) return std::nullopt;
  const BatchFigure* now = configured.figure_in(figures);
  const BatchFigure& fast = *smallest_fast_batch(figures);
  BatchRecommendation found{.batch = configured.batch,
                            .accumulation = configured.accumulation,
                            .global_batch = configured.global_batch(),
                            .learning_rate = configured.learning_rate,
                            .warmup_epochs = configured.warmup_epochs};
  if (now != nullptr && now->samples_per_second >= BatchSearch::kFast * peak->samples_per_second) {
    const bool alone = std::ranges::count_if(figures, &BatchFigure::measured) == 1;
    found.reason =
        alone ? "no other batch was measured"
              : fmt::format("the configured batch reaches {:.0f} % of the highest measured samples/s",
                            100 * now->samples_per_second / peak->samples_per_second);
    if (fast.batch < now->batch)
      found.reason += fmt::format("; batch {} is also fast enough and needs less memory", fast.batch);
    return found;
  }
  const double wanted = configured.automatic ? static_cast<double>(configured.accumulation)
                                             : static_cast<double>(configured.global_batch()) /
                                                   static_cast<double>(fast.batch * configured.ranks);
  found.batch = fast.batch;
  found.accumulation = std::max<std::int64_t>(1, std::llround(wanted));
  if (configured.powers_of_two)
    found.accumulation = std::int64_t{1} << std::lround(std::max(0.0, std::log2(wanted)));
  const std::int64_t most = std::max<std::int64_t>(1, configured.samples / (found.batch * configured.ranks));
  if (found.accumulation > most)
    found.accumulation = configured.powers_of_two
                             ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)))
                             : most;
  found.global_batch = found.batch * found.accumulation * configured.ranks;
  found.learning_rate = configured.rate_for(found.global_batch);
  if (found.learning_rate > configured.learning_rate)
    found.warmup_epochs = std::max(found.warmup_epochs, configured.gentle_warmup);
  found.changes = true;
  found.reason = fmt::format("the smallest batch that reaches {:.0f} % of the highest samples/s",
                             100 * BatchSearch::kFast);
  if (now == nullptr && !configured.automatic)
    found.reason += fmt::format("; the configured batch {} cannot be trained", configured.batch);
  return found;
}

std::string describe_noise(double critical_batch, std::int64_t global_batch,
                           const std::vector<BatchFigure>& figures, const AsConfigured& configured) {
  if (critical_batch <= 0) return {};
  if (!std::isfinite(critical_batch))
    return "gradient cannot be distinguished from noise with the measured samples: larger batches waste no "
           "samples";
  const auto step = static_cast<double>(global_batch);
  std::string text = fmt::format(
      "gradient noise scale (critical batch) is {:.3g} samples at the start of training, and grows later. "
      "Steps of {} samples need {:.2f} times the samples of small steps for the same progress",
      critical_batch, global_batch, 1 + step / critical_batch);
  if (step <= 2 * critical_batch) return text;
  const BatchFigure* below = nullptr;
  for (const BatchFigure& each : figures) {
    const bool fits = static_cast<double>(each.batch * configured.ranks) <= critical_batch;
    if (each.measured() && fits) below = &each;
  }
  if (below != nullptr)
    text += fmt::format("; the largest measured batch below the critical batch is {}, with {}", below->batch,
                        per_second(below->samples_per_second, "samples"));
  return text;
}

}  // namespace lockstep
