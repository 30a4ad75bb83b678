// SPDX-License-Identifier: Apache-2.0
#include "launch/loss_totals.h"

#include "comm/agreement.h"

namespace lockstep {

void LossTotals::add(const LossSums& sums) {
  loss += sums.loss;
  weight += sums.weight;
  correct += sums.correct;
  samples += sums.samples;
}

// In rank order.
LossTotals over_ranks(Communicator& host, const LossTotals& mine) {
  LossTotals sum;
  for (const LossTotals& totals : gather_values(host, mine)) {
    sum.loss += totals.loss;
    sum.weight += totals.weight;
    sum.correct += totals.correct;
    sum.samples += totals.samples;
  }
  return sum;
}

}  // namespace lockstep
