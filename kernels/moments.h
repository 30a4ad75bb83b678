// SPDX-License-Identifier: Apache-2.0
//
// What batch norm sums up over a batch, and over the batches of ranks; the same arithmetic on both devices.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace lockstep {

// Mean and sum of squared distances from it (Chan, Golub and LeVeque, "Algorithms for computing the sample
// variance", 1983).
struct Moments {
  double count;
  double mean;
  double squares;

  LOCKSTEP_HOST_DEVICE void add(const Moments& other) {
    const double both = count + other.count;
    if (both == 0) return;
    const double share = other.count / both;
    const double distance = other.mean - mean;
    mean += distance * share;
    squares += other.squares + distance * distance * count * share;
    count = both;
  }
};

// Of g and g * (x - mean), where g is the gradient behind the activation.
struct GradientSums {
  double sum;
  double product;

  LOCKSTEP_HOST_DEVICE void add(const GradientSums& other) {
    sum += other.sum;
    product += other.product;
  }
};

// The sum of values[i * stride], one of each rank, along the fixed tree over ranks: ((0 + 1) + (2 + 3)) +
// ...; the subtrees that are open are the ones in the number of ranks so far, written in binary.
template <typename Value>
LOCKSTEP_HOST_DEVICE Value sum_along_tree(const Value* values, int ranks, std::int64_t stride) {
  Value open[32];
  int subtrees = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    open[subtrees++] = values[rank * stride];
    for (int full = rank; (full & 1) != 0; full >>= 1, --subtrees) open[subtrees - 2].add(open[subtrees - 1]);
  }
  for (; subtrees > 1; --subtrees) open[subtrees - 2].add(open[subtrees - 1]);
  return open[0];
}

}  // namespace lockstep
