// SPDX-License-Identifier: Apache-2.0
//
// tests/kernels/poison_test.cpp for the CUDA kernels.
#include "tests/kernels/poison.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/pooling.h"
#include "tests/cuda_emulator/device_memory.h"
#include "tests/kernels/batch_norm_reference.h"

namespace lockstep {
namespace {

constexpr Activation kPoisonedActivations[] = {Activation::none, Activation::relu, Activation::relu6};

class CudaPoison : public testing::TestWithParam<DType> {
 protected:
  const DType type_ = GetParam();
  Stream stream_{Device{}, StreamUse::compute};
};
INSTANTIATE_TEST_SUITE_P(Types, CudaPoison, testing::ValuesIn(kElementTypes),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(CudaPoison, ActivationsKeepNan) {
  for (const Activation activation : kPoisonedActivations) {
    for (const std::int64_t count : {1, 9, 21}) {
      const Values x = rounded(random_values(count, "x"), type_);
      for_each_poison(x, [&](const Values& poisoned, std::size_t at, float poison) {
        const DeviceMemory input(poisoned, type_), output(x, type_), given(Values(x.size(), 1.0f), type_);
        cuda_activation_forward(stream_, {activation, type_, count, input.data(), output.data()});
        EXPECT_TRUE(same_number(output.values(type_)[at], activated(activation, poison))) << poison;
        cuda_activation_backward(stream_,
                                 {activation, type_, count, output.data(), given.data(), input.data()});
        EXPECT_EQ(input.values(type_)[at], activation_passes(activation, poison) ? 1.0f : 0.0f) << poison;
      });
    }
  }
}

TEST_P(CudaPoison, SpreadsThroughBiasAndItsActivation) {
  const CudaRows rows{.type = type_, .rows = 3, .channels = 10};
  const Values x = rounded(random_values(rows.elements(), "x"), type_);
  Values all = x;
  const Values bias = random_values(rows.channels, "bias");
  all.insert(all.end(), bias.begin(), bias.end());
  for (const Activation activation : kPoisonedActivations) {
    for_each_poison(all, [&](const Values& poisoned, std::size_t at, float poison) {
      const auto middle = poisoned.begin() + static_cast<std::ptrdiff_t>(x.size());
      const DeviceMemory y(Values(poisoned.begin(), middle), type_),
          shift(Values(middle, poisoned.end()), DType::f32);
      cuda_bias_activation(stream_, rows,
                           {.activation = activation, .bias = shift.as<const float>(), .y = y.data()});
      const Values actual = y.values(type_);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const bool poisons = i == at || at == x.size() + i % bias.size();
        EXPECT_TRUE(poisons ? same_number(actual[i], activated(activation, poison))
                            : std::isfinite(actual[i]))
            << poison << " at " << at << ", element " << i;
      }
    });
  }
}

// All results of the poisoned element's channel are NaN, and none of other channels.
TEST_P(CudaPoison, SpreadsThroughBatchNormAndItsActivation) {
  constexpr std::int64_t kRows = 5, kChannels = 9;
  for (const Activation activation : kPoisonedActivations) {
    for (const bool residual : {false, true}) {
      const CudaBatchNorm norm{.type = type_,
                               .rows = kRows,
                               .channels = kChannels,
                               .options = {.activation = activation, .residual = residual}};
      const Values x = rounded(random_values(kRows * kChannels, "x"), type_);
      const Values scale = random_values(kChannels, "scale"), shift = random_values(kChannels, "shift");
      const BatchNormReference reference({kRows, kChannels, 1, 1}, norm.options);
      for_each_poison(x, [&](const Values& poisoned, std::size_t at, float poison) {
        SCOPED_TRACE(fmt::format("activation {}, residual {}, {} at {}", static_cast<int>(activation),
                                 residual, poison, at));
        const DeviceMemory x_memory(poisoned, type_), added(x, type_), y(x, type_);
        const DeviceMemory scale_memory(scale, DType::f32), shift_memory(shift, DType::f32);
        const DeviceMemory mean(Values(scale.size(), 0.0f), DType::f32);
        const DeviceMemory variance(Values(scale.size(), 1.0f), DType::f32);
        const DeviceMemory saved(norm.saved_bytes()), scratch(norm.scratch_bytes());
        cuda_batch_norm_forward_training(stream_, norm,
                                         {.x = x_memory.data(),
                                          .residual = residual ? added.data() : nullptr,
                                          .parameters = {scale_memory.as<float>(), shift_memory.as<float>()},
                                          .running = {mean.as<float>(), variance.as<float>()},
                                          .y = y.data(),
                                          .saved = saved.data(),
                                          .scratch = scratch.data()});
        const Doubles expected =
            reference.training(widen(poisoned), widen(scale), widen(shift), residual ? widen(x) : Doubles());
        const Values actual = y.values(type_);
        for (std::size_t i = 0; i < x.size(); ++i)
          ASSERT_EQ(std::isfinite(actual[i]), std::isfinite(expected[i])) << "element " << i;
      });
    }
  }
}

TEST_P(CudaPoison, SpreadsThroughPooling) {
  for (const PoolingKind kind : {PoolingKind::max, PoolingKind::average}) {
    for (const bool global : {false, true}) {
      const PoolingOptions options{.kind = kind, .kernel = 3, .stride = 2, .padding = 1, .global = global};
      const Shape shape{2, 1, 4, 5};  // of one channel: [N, H, W, C] is [N, C, H, W]
      const CudaPooling pooling = CudaPooling::from(options, type_, shape);
      const Values x = rounded(random_values(shape.elements(), "x"), type_);
      for_each_poison(x, [&](const Values& poisoned, std::size_t at, float poison) {
        const Doubles expected = pooled(options, shape, poisoned);
        const DeviceMemory input(poisoned, type_), output(expected.size() * size_of(type_)),
            saved(pooling.saved_bytes());
        cuda_pooling_forward(stream_, pooling, input.data(), output.data(), saved.data());
        const Values y = output.values(type_);
        for (std::size_t i = 0; i < y.size(); ++i)
          ASSERT_EQ(std::isfinite(y[i]), std::isfinite(expected[i])) << poison << " at " << at;
      });
    }
  }
}

}  // namespace
}  // namespace lockstep
