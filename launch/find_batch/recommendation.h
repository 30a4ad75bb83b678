// SPDX-License-Identifier: Apache-2.0
//
// Which batch, how many micro-batches of it and which learning rate are recommended, out of what was
// measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/find_batch/batch_search.h"
#include "models/schedule.h"

namespace lockstep {

// How a learning rate follows the samples of a step where nobody says: what suits the optimizer of that name.
RateScaling scaling_for(std::string_view optimizer);

struct AsConfigured {
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  int ranks = 1;
  double learning_rate = 0;
  double warmup_epochs = 0;
  double gentle_warmup = 1;                   // epochs, before a higher rate: see gentle_warmup_epochs()
  RateScaling scaling = RateScaling::linear;  // of the rate, with the samples of a step
  double critical_batch = 0;                  // see NoiseScale; 0: not known

  std::int64_t global_batch() const { return batch * accumulation * ranks; }
  // With so many samples a step, as people would write it: by the rule, but no higher than gradient noise
  // allows, where it is known. The best rate grows with 1 / (1 + critical batch / samples) (McCandlish et
  // al., 2018, equation 2.6): far above the critical batch not at all.
  double rate_for(std::int64_t global_batch) const;
  // Whether it is the noise that holds it back.
  bool is_held_back(std::int64_t global_batch) const;
};

struct BatchRecommendation {
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t global_batch = 1;
  double learning_rate = 0;
  double warmup_epochs = 0;
  bool changes = false;  // anything
  std::string reason = {};
};

// The configured batch stays where it is fast enough. Else the smallest that is, with as many micro-batches
// as bring a step nearest to the samples that it has: one at least, and then the learning rate follows, a
// higher one behind a warm-up, which is part of the rule. Nothing where no batch was measured.
std::optional<BatchRecommendation> recommend_batch(const std::vector<BatchFigure>& figures,
                                                   const AsConfigured& configured);

// What to say of a global batch and the critical one that was measured; empty: nothing.
std::string describe_noise(double critical_batch, std::int64_t global_batch,
                           const std::vector<BatchFigure>& figures, const AsConfigured& configured);

}  // namespace lockstep
