// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bias.h"

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// Calls test(rows, bytes of misalignment).
template <typename Test>
void for_each_bias(Test test) {
  Thinning thinning;
  for (const DType type : kElementTypes) {
    for (const std::int64_t channels : {1, 3, 8, 10, 64, 72, 130}) {
      for (const std::int64_t count : {1, 2, 33, 700}) {
        for (const std::size_t misaligned : {std::size_t{0}, size_of(type)}) {
          if (!thinning.takes()) continue;
          SCOPED_TRACE(fmt::format("{} rows of {} channels in {}, {} bytes off", count, channels,
                                   name_of(type), misaligned));
          test(CudaRows{.type = type, .rows = count, .channels = channels}, misaligned);
        }
      }
    }
  }
}

TEST(CudaBias, IsAddedAndActivatedAndRoundedOnce) {
  Stream stream(Device{}, StreamUse::compute);
  for_each_bias([&](const CudaRows& rows, std::size_t misaligned) {
    for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
      Values y = random_values(rows.elements(), "y");
      for (float& value : y) value *= 9;
      y = rounded(y, rows.type);
      const Values bias = random_values(rows.channels, "bias");
      Values expected(y.size());
      for (std::size_t i = 0; i < y.size(); ++i) {
        float sum = y[i] + bias[i % static_cast<std::size_t>(rows.channels)];
        if (activation != Activation::none) sum = std::max(sum, 0.0f);
        if (activation == Activation::relu6) sum = std::min(sum, 6.0f);
        expected[i] = rounded(sum, rows.type);
      }
      const DeviceMemory bias_memory(bias, DType::f32);
      DeviceMemory memory(y.size() * size_of(rows.type), misaligned);
      EXPECT_EQ(in_any_order([&] {
                  memory.write(y, rows.type);
                  cuda_bias_activation(
                      stream, rows,
                      {.activation = activation, .bias = bias_memory.as<const float>(), .y = memory.data()});
                  return memory.values(rows.type);
                }),
                expected);
    }
  });
}

TEST(CudaBias, GradientIsTheSumOfTheRows) {
  Stream stream(Device{}, StreamUse::compute);
  for_each_bias([&](const CudaRows& rows, std::size_t misaligned) {
    const Values y_gradient = rounded(random_values(rows.elements(), "y gradient"), rows.type);
    const Values before = random_values(rows.channels, "before");
    Doubles expected(before.size());
    for (std::size_t i = 0; i < y_gradient.size(); ++i) {
      expected[i % static_cast<std::size_t>(rows.channels)] += static_cast<double>(y_gradient[i]);
    }
    const DeviceMemory given(y_gradient, rows.type, misaligned);
    DeviceMemory gradient(before.size() * sizeof(float)), scratch(cuda_bias_gradient_scratch_bytes(rows));
    const auto sum = [&](Write write) {
      return in_any_order([&] {
        scratch.spoil();
        write == Write::accumulate ? gradient.write(before, DType::f32) : gradient.spoil();
        cuda_bias_gradient(stream, rows,
                           {.y_gradient = given.data(),
                            .gradient = gradient.as<float>(),
                            .write = write,
                            .scratch = scratch.data()});
        return gradient.values(DType::f32);
      });
    };
    expect_near(sum(Write::overwrite), expected, 1e-6, 1e-6 * static_cast<double>(rows.rows));
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(before[i]);
    expect_near(sum(Write::accumulate), expected, 1e-6, 1e-6 * static_cast<double>(rows.rows));
  });
}

// In inline_runtime.h, a device's index is its number of multiprocessors.
TEST(CudaBias, HasTheSameBitsForAnyNumberOfMultiprocessors) {
  const CudaRows rows{.type = DType::f32, .rows = 4000, .channels = 5};
  const DeviceMemory bias(random_values(rows.channels, "bias"), rows.type);
  const auto on = [&](int multiprocessors) {
    Stream stream({.kind = DeviceKind::cpu, .index = multiprocessors}, StreamUse::compute);
    Values values = random_values(rows.elements(), "y");
    for (float& value : values) value *= 0.1f;  // sums are rounded
    const DeviceMemory y(values, rows.type);
    const DeviceMemory gradient(5 * sizeof(float)), scratch(cuda_bias_gradient_scratch_bytes(rows));
    cuda_bias_gradient(stream, rows,
                       {.y_gradient = y.data(), .gradient = gradient.as<float>(), .scratch = scratch.data()});
    cuda_bias_activation(stream, rows, {.bias = bias.as<const float>(), .y = y.data()});
    return std::pair(y.values(rows.type), gradient.values(rows.type));
  };
  EXPECT_EQ(on(1), on(132));
}

}  // namespace
}  // namespace lockstep
