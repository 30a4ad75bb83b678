// SPDX-License-Identifier: Apache-2.0
#include "kernels/mixing.h"

#include <cmath>

namespace lockstep {
namespace {

// std::lgamma writes the sign to a global variable, which is a data race if ranks are threads.
double log_gamma(double positive) {
  int sign;
  return lgamma_r(positive, &sign);
}

// The regularised incomplete beta function of (a, a), by Lentz's method for its continued fraction (DLMF
// 8.17.22), for x <= 1/2, for which it converges fast.
double beta_probability(double a, double x) {
  constexpr double kTiny = 1e-300;
  constexpr int kMostTerms = 1000;
  double c = 1, d = 1 - 2 * a * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double fraction = d;
  for (int m = 1; m < kMostTerms; ++m) {
    const double even = m * (a - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double step = 1;
    for (const double term : {even, odd}) {
      d = 1 + term * d;
      c = 1 + term / c;
      if (std::abs(d) < kTiny) d = kTiny;
      if (std::abs(c) < kTiny) c = kTiny;
      d = 1 / d;
      step = d * c;
      fraction *= step;
    }
    if (std::abs(step - 1) < 1e-15) break;
  }
  const double log_front = a * std::log(x) + a * std::log1p(-x) + log_gamma(2 * a) - 2 * log_gamma(a);
  return std::exp(log_front) * fraction / a;
}

}  // namespace

double beta_quantile(double alpha, double p) {
  if (p > 0.5) return 1 - beta_quantile(alpha, 1 - p);
  double low = 0, high = 0.5;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    if (middle <= 0 || middle == low || middle == high) break;
    (beta_probability(alpha, middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

Mix Mix::from(const Augmentation& augmentation, std::int64_t height, std::int64_t width) {
  Mix mix{.mixes = augmentation.mixup > 0,
          .pastes = augmentation.cutmix > 0,
          .height = static_cast<int>(height),
          .width = static_cast<int>(width),
          .key = augmentation.key};
  for (int i = 0; i < kMixQuantiles; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kMixQuantiles;
    if (mix.mixes) mix.mixup_share[i] = static_cast<float>(beta_quantile(augmentation.mixup, p));
    if (mix.pastes)
      mix.cutmix_half[i] = static_cast<float>(std::sqrt(1 - beta_quantile(augmentation.cutmix, p)) / 2);
  }
  return mix;
}

}  // namespace lockstep
