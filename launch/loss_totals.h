// SPDX-License-Identifier: Apache-2.0
//
// LossTotals: what the samples of some steps add up to, of one rank or of all.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "comm/communicator.h"
#include "kernels/loss.h"

namespace lockstep {

struct LossTotals {
  double loss = 0;
  double weight = 0;
  std::int64_t correct = 0;
  std::int64_t samples = 0;

  void add(const LossSums& sums);
  // NaN where there were none: every step so far was skipped. A NaN has no sign.
  double mean() const {
    const double mean = loss / weight;
    return std::isnan(mean) ? std::numeric_limits<double>::quiet_NaN() : mean;
  }
};

// Collective over a communicator of host memory. Every rank gets the same doubles.
LossTotals over_ranks(Communicator& host, const LossTotals& mine);

}  // namespace lockstep
