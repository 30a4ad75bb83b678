// SPDX-License-Identifier: Apache-2.0
//
// LossTotals: sums over the samples of some steps, of one rank or of all.
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
  std::int64_t left_out = 0;  // of an evaluation: samples that could not be decoded

  void add(const LossSums& sums);
  // Mean loss; NaN, with positive sign, if every step so far was skipped.
  double mean() const {
    const double mean = loss / weight;
    return std::isnan(mean) ? std::numeric_limits<double>::quiet_NaN() : mean;
  }
};

// Collective over host memory. Every rank gets the same doubles.
LossTotals over_ranks(Communicator& host, const LossTotals& mine);

}  // namespace lockstep
