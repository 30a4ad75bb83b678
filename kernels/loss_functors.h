// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of OutputLoss, for host and device.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/functors.h"
#include "kernels/loss.h"

namespace lockstep {

// Cross-entropy of sigmoid(x) and a target in [0, 1], in a form that does not overflow. 0 for an infinite x
// of the target's side.
struct BinaryCrossEntropy {
  LOCKSTEP_HOST_DEVICE static double loss(double x, double target) {
    const double missed = x > 0 ? 1.0 - target : target;
    return (missed == 0 ? 0.0 : std::fabs(x) * missed) + std::log1p(std::exp(-std::fabs(x)));
  }
  LOCKSTEP_HOST_DEVICE static double slope(double x, double target) {
    return 1.0 / (1.0 + std::exp(-x)) - target;
  }
};

struct SquaredError {
  LOCKSTEP_HOST_DEVICE static double loss(double x, double target) { return (x - target) * (x - target); }
  LOCKSTEP_HOST_DEVICE static double slope(double x, double target) { return 2 * (x - target); }
};

// The targets of a sample's outputs.
struct OutputTargets {
  std::int64_t outputs = 1;
  std::int32_t label = 0;
  std::int32_t other = 0;  // the partner's label
  double share = 1;        // of the own label
  double smoothing = 0;

  template <typename Arguments>
  LOCKSTEP_HOST_DEVICE static OutputTargets of(const Arguments& a, std::int64_t sample) {
    const double share = a.shares == nullptr ? 1.0 : static_cast<double>(a.shares[sample]);
    const bool numbers = a.outputs == 1 && a.loss == Loss::mean_squared_error;
    return {.outputs = a.outputs,
            .label = a.labels[sample],
            .other = share < 1 ? a.labels[sample ^ 1] : a.labels[sample],
            .share = share,
            .smoothing = numbers ? 0.0 : static_cast<double>(a.label_smoothing)};
  }
  LOCKSTEP_HOST_DEVICE double operator()(std::int64_t output) const {
    const double own = outputs == 1 ? label : output == label ? 1.0 : 0.0;
    const double partners = outputs == 1 ? other : output == other ? 1.0 : 0.0;
    const double kinds = outputs == 1 ? 2.0 : static_cast<double>(outputs);
    return (1.0 - smoothing) * (share * own + (1.0 - share) * partners) + smoothing / kinds;
  }
};

// The class that a single output means; -1 for NaN and infinities.
LOCKSTEP_HOST_DEVICE inline std::int64_t class_of_output(Loss loss, float output, std::int64_t classes) {
  if (!(std::fabs(output) <= std::numeric_limits<float>::max())) return -1;
  if (loss == Loss::binary_cross_entropy) return output > 0 && classes > 1 ? 1 : 0;
  const double last = static_cast<double>(classes - 1), value = static_cast<double>(output);
  return static_cast<std::int64_t>((value < 0 ? 0.0 : value > last ? last : value) + 0.5);
}

// Calls function with the functor of the loss.
template <typename F>
void with_output_loss(Loss loss, F&& function) {
  if (loss == Loss::binary_cross_entropy) return function(BinaryCrossEntropy());
  function(SquaredError());
}

}  // namespace lockstep
