// SPDX-License-Identifier: Apache-2.0
//
// Finds the first of a row's largest logits with one warp.
#pragma once

#include <cmath>
#include <limits>

#include <cuda_runtime.h>

#include "kernels/cuda/reduce.h"

namespace lockstep {

// The largest value so far and its first place. NaN is ignored.
struct Largest {
  float value = -INFINITY;
  int place = std::numeric_limits<int>::max();

  __device__ void take(float other, int other_place) {
    if (!(other > value || (other == value && other_place < place))) return;
    value = other;
    place = other_place;
  }
};

// Returns the largest over all lanes, in every lane. All lanes of the warp must call it.
__device__ inline Largest warp_largest(Largest largest) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const float value = __shfl_xor_sync(kWholeWarp, largest.value, distance);
    const int place = __shfl_xor_sync(kWholeWarp, largest.place, distance);
    largest.take(value, place);
  }
  return largest;
}

}  // namespace lockstep
