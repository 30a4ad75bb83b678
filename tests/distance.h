// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <span>

namespace lockstep {

// Relative distance of a from b: the norm of the difference divided by the norm of b. The sizes are equal.
inline double distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace lockstep
