// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_norm.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

// The definition in double precision.
Doubles reference_layer_norm(const Doubles& x, const Doubles& scale, const Doubles& shift, double epsilon) {
  Doubles y(x.size());
  const std::size_t features = scale.size();
  for (std::size_t begin = 0; begin < x.size(); begin += features) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < features; ++i) mean += x[begin + i] / static_cast<double>(features);
    for (std::size_t i = 0; i < features; ++i)
      variance += (x[begin + i] - mean) * (x[begin + i] - mean) / static_cast<double>(features);
    for (std::size_t i = 0; i < features; ++i)
      y[begin + i] = (x[begin + i] - mean) / std::sqrt(variance + epsilon) * scale[i] + shift[i];
  }
  return y;
}

TEST(LayerNorm, MatchesTheDefinitionAndItsSlopes) {
  Stream stream(Device{}, StreamUse::compute);
  Backend& backend = backend_for(Device{});
  constexpr float kEpsilon = 1e-3f;
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [batch, features] : {std::pair{1, 1}, {3, 7}, {64, 300}, {5, 4097}}) {
      SCOPED_TRACE(fmt::format("{} samples of {} features in {}", batch, features, name_of(type)));
      const double precision = type == DType::f32 ? 1e-6 : type == DType::f16 ? 1e-3 : 8e-3;
      const std::int64_t count = std::int64_t{batch} * features;
      Values x = random_values(count, "x");
      for (float& value : x) value = 3 * value + 2;
      x = rounded(x, type);
      const Values y_gradient = rounded(random_values(count, "y gradient"), type);
      const Values scale = random_values(features, "scale"), shift = random_values(features, "shift");
      const GuardedMemory input(x, type), output(x.size() * size_of(type), type), given(y_gradient, type),
          result(x.size() * size_of(type), type), scale_gradient(scale), shift_gradient(shift);
      std::vector<LayerNormMoments> moments(static_cast<std::size_t>(batch));
      LayerNormForward forward = {.batch = batch,
                                  .features = features,
                                  .type = type,
                                  .epsilon = kEpsilon,
                                  .x = input.data(),
                                  .scale = scale.data(),
                                  .shift = shift.data(),
                                  .y = output.data(),
                                  .moments = moments.data()};
      backend.layer_norm_forward(stream, forward);
      EXPECT_TRUE(output.margin_intact());
      const Doubles exact = reference_layer_norm(widen(x), widen(scale), widen(shift), kEpsilon);
      const Values y = output.values();
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], exact[i], 6 * precision) << i;

      LayerNormBackward backward{.batch = batch,
                                 .features = features,
                                 .type = type,
                                 .x = input.data(),
                                 .y_gradient = given.data(),
                                 .scale = scale.data(),
                                 .moments = moments.data(),
                                 .x_gradient = result.data(),
                                 .scale_gradient = static_cast<float*>(scale_gradient.data()),
                                 .shift_gradient = static_cast<float*>(shift_gradient.data())};
      backend.layer_norm_backward(stream, backward);
      EXPECT_TRUE(result.margin_intact() && scale_gradient.margin_intact() && shift_gradient.margin_intact());
      // The slope of sum(y * y_gradient) along a random direction.
      const auto along = [&](const char* purpose, const Doubles& at, const Values& gradient,
                             const auto& y_at) {
        const Doubles direction = widen(random_values(static_cast<std::int64_t>(at.size()), purpose));
        const auto objective = [&](const Doubles& there) { return dot(y_at(there), widen(y_gradient)); };
        EXPECT_NEAR(dot(widen(gradient), direction), slope(at, direction, objective),
                    4 * precision * std::sqrt(static_cast<double>(count)))
            << purpose;
      };
      along("x", widen(x), result.values(), [&](const Doubles& there) {
        return reference_layer_norm(there, widen(scale), widen(shift), kEpsilon);
      });
      along("scale", widen(scale), scale_gradient.values(), [&](const Doubles& there) {
        return reference_layer_norm(widen(x), there, widen(shift), kEpsilon);
      });
      along("shift", widen(shift), shift_gradient.values(), [&](const Doubles& there) {
        return reference_layer_norm(widen(x), widen(scale), there, kEpsilon);
      });

      // Accumulating doubles the gradients of the parameters; the input's may replace the output's.
      const Values once = scale_gradient.values(), shift_once = shift_gradient.values(),
                   apart = result.values();
      backward.write = Write::accumulate;
      backward.x_gradient = given.data();
      backend.layer_norm_backward(stream, backward);
      const Values twice = scale_gradient.values(), shift_twice = shift_gradient.values();
      for (std::size_t i = 0; i < once.size(); ++i) {
        EXPECT_EQ(twice[i], 2 * once[i]);
        EXPECT_EQ(shift_twice[i], 2 * shift_once[i]);
      }
      EXPECT_EQ(given.values(), apart);

      // Without a backward, y may replace x, and no moments are needed.
      forward.y = input.data();
      forward.moments = nullptr;
      backend.layer_norm_forward(stream, forward);
      const Values replaced = input.values();
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(replaced[i], exact[i], 6 * precision) << i;
    }
  }
}

}  // namespace
}  // namespace lockstep
