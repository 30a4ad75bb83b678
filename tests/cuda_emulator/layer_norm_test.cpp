// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/layer_norm.h"

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

TEST(CudaLayerNorm, EqualsTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  Backend& cpu = backend_for(Device{});
  for (const DType type : kElementTypes) {
    for (const auto& [batch, features] : {std::pair{1, 1}, {3, 7}, {5, 300}}) {
      SCOPED_TRACE(fmt::format("{} samples of {} features in {}", batch, features, name_of(type)));
      const std::int64_t count = std::int64_t{batch} * features;
      const auto size = static_cast<std::size_t>(count);
      const Values x = rounded(random_values(count, "x"), type);
      const Values y_gradient = rounded(random_values(count, "y gradient"), type);
      const Values scale = random_values(features, "scale"), shift = random_values(features, "shift");
      Values y(size), x_gradient(size), scale_gradient = scale, shift_gradient = shift;
      std::vector<LayerNormMoments> moments(static_cast<std::size_t>(batch));
      LayerNormForward forward{.batch = batch,
                               .features = features,
                               .x = x.data(),
                               .scale = scale.data(),
                               .shift = shift.data(),
                               .y = y.data(),
                               .moments = moments.data()};
      LayerNormBackward backward{.batch = batch,
                                 .features = features,
                                 .x = x.data(),
                                 .y_gradient = y_gradient.data(),
                                 .scale = scale.data(),
                                 .moments = moments.data(),
                                 .x_gradient = x_gradient.data(),
                                 .scale_gradient = scale_gradient.data(),
                                 .shift_gradient = shift_gradient.data(),
                                 .write = Write::accumulate};
      cpu.layer_norm_forward(stream, forward);
      cpu.layer_norm_backward(stream, backward);

      const DeviceMemory x_memory(x, type), given(y_gradient, type), y_memory(size * size_of(type)),
          result(size * size_of(type)), scales(scale, DType::f32), shifts(shift, DType::f32),
          moment_memory(moments.size() * sizeof(LayerNormMoments));
      forward.type = backward.type = type;
      forward.x = backward.x = x_memory.data();
      forward.scale = backward.scale = scales.as<const float>();
      forward.shift = shifts.as<const float>();
      forward.y = y_memory.data();
      forward.moments = moment_memory.as<LayerNormMoments>();
      backward.moments = moment_memory.as<const LayerNormMoments>();
      backward.y_gradient = given.data();
      backward.x_gradient = result.data();
      const double relative = 1e-5 + 1.01 * precision_of(type);
      expect_near(in_any_order([&] {
                    cuda_layer_norm_forward(stream, forward);
                    return y_memory.values(type);
                  }),
                  widen(y), relative, 1e-5);
      Values sums;
      expect_near(in_any_order([&] {
                    const DeviceMemory scale_sums(scale, DType::f32), shift_sums(shift, DType::f32);
                    backward.scale_gradient = scale_sums.as<float>();
                    backward.shift_gradient = shift_sums.as<float>();
                    cuda_layer_norm_backward(stream, backward);
                    sums = scale_sums.values(DType::f32);
                    const Values shift_values = shift_sums.values(DType::f32);
                    sums.insert(sums.end(), shift_values.begin(), shift_values.end());
                    return result.values(type);
                  }),
                  widen(x_gradient), relative, 1e-5);
      Values expected = scale_gradient;
      expected.insert(expected.end(), shift_gradient.begin(), shift_gradient.end());
      expect_near(sums, widen(expected), 1e-5, 1e-5);
    }
  }
}

}  // namespace
}  // namespace lockstep
