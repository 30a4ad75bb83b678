// SPDX-License-Identifier: Apache-2.0
#include "data/loader_pace.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

int threads_wanted(const LoaderPace& pace, int most) {
  constexpr double kTolerated = 0.005, kToSpare = 1.1;
  if (pace.waited_seconds <= kTolerated * pace.seconds) return pace.threads;
  const double computing = std::max(pace.seconds - pace.waited_seconds, 1e-9);
  const double needed = std::ceil(std::min(kToSpare * pace.processor_seconds / computing, 1e6));
  return std::max(pace.threads, std::min(std::max(pace.threads + 1, static_cast<int>(needed)), most));
}

}  // namespace lockstep
