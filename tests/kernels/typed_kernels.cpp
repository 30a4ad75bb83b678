// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/typed_kernels.h"

#include <gtest/gtest.h>

#include "kernels/cuda/layout.h"

namespace lockstep {
namespace {

TypedTensor memory(const Lab& lab, std::size_t bytes) {
  return TypedTensor(lab, Layout({static_cast<std::int64_t>(bytes / sizeof(float)) + 1}, DType::f32));
}

}  // namespace

std::vector<Layout> cuda_layouts_of(const Shape& shape, DType type) {
  std::vector<Layout> layouts = {Layout(shape, type)};
  for (const std::int64_t physical : {shape[1], shape[1] + 3}) {
    layouts.push_back(channels_last_layout(shape, type,
                                           {.outer = shape[0],
                                            .channels = shape[1],
                                            .pixels = shape.elements() / shape[0] / shape[1],
                                            .physical_channels = physical}));
  }
  return layouts;
}

std::vector<Values> run_batch_norm(const Lab& lab, BatchNormKernel& kernel, const BatchNormOptions& options) {
  const Shape& shape = kernel.layout().shape();
  const auto tensor = [&](std::string_view purpose) {
    return TypedTensor(lab, kernel.layout(), rounded(random_values(shape.elements(), purpose), DType::bf16));
  };
  const auto channel = [&](std::string_view purpose) {
    Values values = random_values(shape[1], purpose);
    for (float& value : values) value += 2;
    return TypedTensor(lab, DType::f32, values);
  };
  const TypedTensor x = tensor("x"), residual = tensor("residual"), y_gradient = tensor("y gradient"),
                    y(lab, kernel.layout()), evaluated(lab, kernel.layout()),
                    x_gradient(lab, kernel.layout()), scale = channel("scale"), shift = channel("shift"),
                    mean = channel("mean"), variance = channel("variance"),
                    scale_gradient = channel("scale gradient"), shift_gradient = channel("shift gradient"),
                    saved = memory(lab, kernel.saved_bytes());
  TypedTensor scratch = memory(lab, kernel.scratch_bytes());
  BatchNormForward forward{.x = x.data(),
                           .residual = options.residual ? residual.data() : nullptr,
                           .parameters = {scale.floats(), shift.floats()},
                           .running = {mean.floats(), variance.floats()},
                           .y = y.data(),
                           .saved = saved.data(),
                           .scratch = scratch.data()};
  kernel.forward_training(lab.stream, forward);
  scratch.poison();
  // The kernel writes the residual's gradient over y's.
  kernel.backward(lab.stream, {.x = x.data(),
                               .y_gradient = y_gradient.data(),
                               .parameters = {scale.floats(), shift.floats()},
                               .saved = saved.data(),
                               .x_gradient = x_gradient.data(),
                               .residual_gradient = options.residual ? y_gradient.data() : nullptr,
                               .scale_gradient = scale_gradient.floats(),
                               .shift_gradient = shift_gradient.floats(),
                               .write = Write::accumulate,
                               .scratch = scratch.data()});
  scratch.poison();
  forward.y = evaluated.data();
  kernel.forward_evaluation(lab.stream, forward);
  for (const TypedTensor* written : {&y, &evaluated, &x_gradient}) EXPECT_TRUE(written->padding_is_zero());
  return {y.plain(),
          evaluated.plain(),
          x_gradient.plain(),
          options.residual ? y_gradient.plain() : Values(),
          mean.plain(),
          variance.plain(),
          scale_gradient.plain(),
          shift_gradient.plain()};
}

std::vector<Values> run_pooling(const Lab& lab, PoolingKernel& kernel) {
  // Neighbours differ, so that no window has two maxima.
  const auto tensor = [&](const Layout& layout) {
    Values values(static_cast<std::size_t>(layout.shape().elements()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 251) / 128 - 1;
    return TypedTensor(lab, layout, values);
  };
  const TypedTensor x = tensor(kernel.input()), y_gradient = tensor(kernel.output()), y(lab, kernel.output()),
                    x_gradient(lab, kernel.input()), saved = memory(lab, kernel.saved_bytes());
  TypedTensor scratch = memory(lab, kernel.scratch_bytes());
  kernel.forward(lab.stream, x.data(), y.data(), saved.data(), scratch.data());
  scratch.poison();
  kernel.backward(lab.stream, y_gradient.data(), saved.data(), x_gradient.data(), scratch.data());
  EXPECT_TRUE(y.padding_is_zero());
  EXPECT_TRUE(x_gradient.padding_is_zero());
  return {y.plain(), x_gradient.plain()};
}

}  // namespace lockstep
