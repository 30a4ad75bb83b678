// SPDX-License-Identifier: Apache-2.0
//
// Sums of batch norm over a batch and over ranks; the same arithmetic on both devices.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"

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

// Sums of g and g * (x - mean), where g is the gradient of the activation's input.
struct GradientSums {
  double sum;
  double product;

  LOCKSTEP_HOST_DEVICE void add(const GradientSums& other) {
    sum += other.sum;
    product += other.product;
  }
};

// The sum of values[i * stride], one per rank, along the fixed tree over ranks: ((0 + 1) + (2 + 3)) + ...
// Overwrites the values with partial sums.
template <typename Value>
LOCKSTEP_HOST_DEVICE Value sum_along_tree(Value* values, int ranks, std::int64_t stride) {
  for (int apart = 1; apart < ranks; apart *= 2) {
    for (int rank = 0; rank + apart < ranks; rank += 2 * apart)
      values[rank * stride].add(values[(rank + apart) * stride]);
  }
  return values[0];
}

}  // namespace lockstep
