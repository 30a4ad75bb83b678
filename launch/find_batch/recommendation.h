// SPDX-License-Identifier: Apache-2.0
//
// Which batch, how many micro-batches of it and which learning rate are recommended, out of what was
// measured.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/find_batch/batch_search.h"

namespace lockstep {

// How the learning rate follows the samples of a step: not at all, in proportion (Goyal et al., 2017, for
// sgd), or with the square root (for adamw and lars).
enum class RateRule { none, linear, square_root };
std::span<const std::string_view> words_of(RateRule rule);
// Where nobody says: what suits the optimizer of that name.
RateRule rule_for(std::string_view optimizer);
double scaled_rate(double rate, RateRule rule, double factor);

struct AsConfigured {
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  int ranks = 1;
  double learning_rate = 0;
  RateRule rule = RateRule::linear;

  std::int64_t global_batch() const { return batch * accumulation * ranks; }
};

struct BatchRecommendation {
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t global_batch = 1;
  double learning_rate = 0;
  bool changes = false;  // anything
  std::string reason = {};
};

// The configured batch stays where it is fast enough. Else the smallest that is, with as many micro-batches
// as bring a step nearest to the samples that it has: one at least, and then the learning rate follows.
// Nothing where no batch was measured.
std::optional<BatchRecommendation> recommend_batch(const std::vector<BatchFigure>& figures,
                                                   const AsConfigured& configured);

// What to say of a global batch and the critical one that was measured; empty: nothing.
std::string describe_noise(double critical_batch, std::int64_t global_batch,
                           const std::vector<BatchFigure>& figures, const AsConfigured& configured);

}  // namespace lockstep
