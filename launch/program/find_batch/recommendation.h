// SPDX-License-Identifier: Apache-2.0
//
// Recommends a batch, the number of micro-batches and the learning rate from the measurements.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/program/find_batch/batch_search.h"
#include "models/schedule.h"

namespace lockstep {

// The default rule for scaling the learning rate with the samples per step, for the optimizer of that name.
RateScaling scaling_for(std::string_view optimizer);

struct AsConfigured {
  std::int64_t batch = 1;
  bool automatic = false;  // train.batch = "auto": none is configured, and `batch` only begins the search
  std::int64_t accumulation = 1;
  int ranks = 1;
  double learning_rate = 0;
  double warmup_epochs = 0;
  double gentle_warmup = 1;                   // warm-up epochs of a higher rate, see gentle_warmup_epochs()
  RateScaling scaling = RateScaling::linear;  // of the rate with the samples per step
  double critical_batch = 0;                  // samples, see NoiseScale; 0: unknown
  bool powers_of_two = false;                 // only such an accumulation is allowed
  std::int64_t samples = std::numeric_limits<std::int64_t>::max();  // in the training set

  std::int64_t global_batch() const { return batch * accumulation * ranks; }
  // The measurement of the configured batch. Null if it was not measured, or if none is configured.
  const BatchFigure* figure_in(const std::vector<BatchFigure>& figures) const;
  // The learning rate for `global_batch` samples per step, rounded to 3 digits: by the rule, but not above
  // the limit of the gradient noise, if known. The best rate grows with 1 / (1 + critical batch / samples)
  // (McCandlish et al., 2018, equation 2.6): far above the critical batch it no longer grows.
  double rate_for(std::int64_t global_batch) const;
  // True if the gradient noise limits the rate of rate_for().
  bool is_held_back(std::int64_t global_batch) const;
};

struct BatchRecommendation {
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t global_batch = 1;
  double learning_rate = 0;
  double warmup_epochs = 0;
  bool changes = false;  // true if it differs from the configuration
  std::string reason = {};
};

// Keeps the configured batch if it is fast enough. Otherwise recommends the smallest fast batch, with the
// accumulation (at least 1) that brings the step closest to the configured global batch without exceeding the
// training set, and the learning rate for it; a higher rate gets a warm-up, which is part of the rule. An
// automatic batch keeps its accumulation. Empty if no batch was measured.
std::optional<BatchRecommendation> recommend_batch(const std::vector<BatchFigure>& figures,
                                                   const AsConfigured& configured);

// Describes a global batch relative to the measured critical batch; empty without a critical batch.
std::string describe_noise(double critical_batch, std::int64_t global_batch,
                           const std::vector<BatchFigure>& figures, const AsConfigured& configured);

}  // namespace lockstep
