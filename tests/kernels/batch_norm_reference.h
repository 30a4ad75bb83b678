// SPDX-License-Identifier: Apache-2.0
//
// The reference of batch normalisation: its definition in double precision, on plain [N, C, pixels] memory.
#pragma once

#include <cmath>

#include "kernels/batch_norm.h"
#include "tests/kernels/affine_reference.h"

namespace lockstep {

struct BatchNormReference {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t pixels = 0;
  BatchNormOptions options;

  explicit BatchNormReference(const Shape& shape, const BatchNormOptions& o)
      : batch(shape[0]), channels(shape[1]), pixels(shape.elements() / shape[0] / shape[1]), options(o) {}

  std::int64_t samples() const { return batch * pixels; }

  // Calls visit(element index) for every element of a channel.
  template <typename Visit>
  void each(std::int64_t channel, Visit visit) const {
    for (std::int64_t n = 0; n < batch; ++n) {
      for (std::int64_t p = 0; p < pixels; ++p) {
        visit(static_cast<std::size_t>((n * channels + channel) * pixels + p));
      }
    }
  }

  double mean(const Doubles& x, std::int64_t channel) const {
    double sum = 0;
    each(channel, [&](std::size_t i) { sum += x[i]; });
    return sum / static_cast<double>(samples());
  }
  // Biased variance.
  double variance(const Doubles& x, std::int64_t channel) const {
    const double center = mean(x, channel);
    double sum = 0;
    each(channel, [&](std::size_t i) { sum += (x[i] - center) * (x[i] - center); });
    return sum / static_cast<double>(samples());
  }

  // residual is empty if there is none.
  Doubles normalize(const Doubles& x, const Doubles& means, const Doubles& variances, const Doubles& scale,
                    const Doubles& shift, const Doubles& residual) const {
    Doubles y(x.size());
    for (std::int64_t c = 0; c < channels; ++c) {
      const double factor = scale[c] / std::sqrt(variances[c] + static_cast<double>(options.epsilon));
      each(c, [&](std::size_t i) {
        const double value = (x[i] - means[c]) * factor + shift[c] + (residual.empty() ? 0.0 : residual[i]);
        y[i] = activated(options.activation, value);
      });
    }
    return y;
  }

  Doubles training(const Doubles& x, const Doubles& scale, const Doubles& shift,
                   const Doubles& residual) const {
    Doubles means, variances;
    for (std::int64_t c = 0; c < channels; ++c) {
      means.push_back(mean(x, c));
      variances.push_back(variance(x, c));
    }
    return normalize(x, means, variances, scale, shift, residual);
  }
};

}  // namespace lockstep
