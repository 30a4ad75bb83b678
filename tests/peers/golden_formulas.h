// SPDX-License-Identifier: Apache-2.0
//
// Weights and images, which golden files omit because both sides compute them by the formulas of
// golden_cases.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "core/tensor/tensor.h"

namespace lockstep {

inline constexpr std::int64_t kGoldenClasses = 10;
inline constexpr double kGoldenMean = 0.3, kGoldenDeviation = 0.25;

// The elements of a tensor of PyTorch's state dict.
inline std::vector<float> start_values(const std::string& name, const Shape& shape) {
  constexpr std::uint64_t kWeightsSeed = 2;
  const Random random(kWeightsSeed, name);
  const auto fan_in = static_cast<double>(shape.elements()) / static_cast<double>(shape[0]);
  const auto reach = static_cast<float>(std::sqrt(6 / fan_in));
  const auto [low, high] = name.ends_with("running_var") ? std::pair(0.5f, 1.5f)
                           : shape.rank() > 1            ? std::pair(-reach, reach)
                           : name.ends_with("weight")    ? std::pair(0.7f, 1.3f)
                                                         : std::pair(-0.1f, 0.1f);
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = random.uniform(i, low, high);
  return values;
}

// Stripes that depend on the class, plus noise: [batch, size, size, channels]. The label of image n is n
// modulo the number of classes.
inline std::vector<std::uint8_t> golden_pixels(std::int64_t batch, std::int64_t size, std::int64_t channels,
                                               const std::string& split) {
  constexpr std::uint64_t kSamplesSeed = 1;
  const Random random(kSamplesSeed, split);
  std::vector<std::uint8_t> pixels;
  for (std::int64_t n = 0; n < batch; ++n) {
    const std::int64_t label = n % kGoldenClasses;
    for (std::int64_t i = 0; i < size * size * channels; ++i) {
      const std::int64_t c = i % channels, x = i / channels % size, y = i / channels / size;
      const std::int64_t stripes = (x * (1 + label % 5) + y * (1 + label / 5) + 5 * c) * 8 % 192;
      const std::uint32_t noise = random.bits(pixels.size()) & 63;
      pixels.push_back(static_cast<std::uint8_t>(stripes + noise));
    }
  }
  return pixels;
}

}  // namespace lockstep
