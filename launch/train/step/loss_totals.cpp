// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step/loss_totals.h"

#include "comm/agreement.h"

namespace lockstep {

void LossTotals::add(const LossSums& sums) {
  // Samples of a short batch have larger weights in the gradient (Batch::weights); here all weigh the same.
  const double weight_of_each = sums.samples > 0 ? sums.weight / static_cast<double>(sums.samples) : 1.0;
  loss += sums.loss / weight_of_each;
  weight += sums.weight / weight_of_each;
  correct += sums.correct;
  samples += sums.samples;
}

// Adds in rank order.
LossTotals over_ranks(Communicator& host, const LossTotals& mine) {
  LossTotals sum;
  for (const LossTotals& totals : gather_values(host, mine)) {
    sum.loss += totals.loss;
    sum.weight += totals.weight;
    sum.correct += totals.correct;
    sum.samples += totals.samples;
    sum.left_out += totals.left_out;
  }
  return sum;
}

}  // namespace lockstep
