// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sparse.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

// A choice among numbers by the kernels of the CPU or of the GPU. The numbers are multiples of 1/64, so that
// both sums have the same bits.
struct Choice {
  static Values coarse(std::int64_t count, std::string_view purpose) {
    Values values = random_values(count, purpose);
    for (float& value : values) value = std::round(value * value * value * 8192) / 64;
    return values;
  }

  Choice(std::int64_t numbers, std::int64_t wanted)
      : count(numbers),
        kept(wanted),
        gradient(coarse(count, "gradient"), DType::f32),
        residual(coarse(count, "residual"), DType::f32),
        velocity(coarse(count, "velocity"), DType::f32),
        next_residual(static_cast<std::size_t>(count) * sizeof(float)),
        next_velocity(static_cast<std::size_t>(count) * sizeof(float)),
        shape{.count = numbers, .capacity = wanted},
        message(static_cast<std::size_t>(shape.words()) * sizeof(std::uint32_t)),
        sums(static_cast<std::size_t>(count) * sizeof(float)),
        scratch(sparse_scratch_bytes(count)) {}

  SparseNumbers numbers() const {
    return {.count = count,
            .gradient = gradient.as<float>(),
            .loss_scale = &loss_scale,
            .learning_rate = &learning_rate,
            .clip = &clip,
            .residual = residual.as<float>(),
            .velocity = momentum > 0 ? velocity.as<float>() : nullptr,
            .momentum = momentum};
  }
  template <typename Run>
  Values run(Run&& operations) {
    for (DeviceMemory* memory : {&next_residual, &next_velocity, &message, &sums, &scratch}) memory->spoil();
    operations(SparseClip{.count = count,
                          .gradient = gradient.as<float>(),
                          .loss_scale = &loss_scale,
                          .most = 1e30f,
                          .clip = &clip,
                          .scratch = scratch.data()});
    operations(SparseThreshold{
        .numbers = numbers(), .kept = kept, .threshold = &threshold, .scratch = scratch.data()});
    operations(SparseSelection{.numbers = numbers(),
                               .capacity = kept,
                               .threshold = &threshold,
                               .message = message.as<std::uint32_t>(),
                               .next_residual = next_residual.as<float>(),
                               .next_velocity = momentum > 0 ? next_velocity.as<float>() : nullptr,
                               .kept_velocity = 0.375f,
                               .scratch = scratch.data()});
    operations(SparseSum{.shape = shape,
                         .ranks = 1,
                         .messages = message.as<std::uint32_t>(),
                         .stride = shape.words(),
                         .loss_scale = &loss_scale,
                         .sums = sums.as<float>()});
    Values all = {clip, static_cast<float>(threshold)};
    for (std::int64_t i = 0; i < shape.words(); ++i) {
      const std::uint32_t word = message.as<std::uint32_t>()[i];
      all.push_back(static_cast<float>(word >> 16));
      all.push_back(static_cast<float>(word & 0xffffu));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      all.push_back(next_residual.as<float>()[i]);
      all.push_back(sums.as<float>()[i]);
      if (momentum > 0) all.push_back(next_velocity.as<float>()[i]);
    }
    return all;
  }

  std::int64_t count, kept;
  float momentum = 0, loss_scale = 2, learning_rate = 0.5f, clip = 0;
  std::uint32_t threshold = 0;
  DeviceMemory gradient, residual, velocity, next_residual, next_velocity;
  SparseMessage shape;
  DeviceMemory message, sums, scratch;
};

struct ChosenByCpu {
  Stream& stream;
  void operator()(const SparseClip& a) const { backend_for(Device{}).sparse_clip(stream, a); }
  void operator()(const SparseThreshold& a) const { backend_for(Device{}).sparse_threshold(stream, a); }
  void operator()(const SparseSelection& a) const { backend_for(Device{}).sparse_select(stream, a); }
  void operator()(const SparseSum& a) const { backend_for(Device{}).sparse_sum(stream, a); }
};
struct ChosenByGpu {
  Stream& stream;
  void operator()(const SparseClip& a) const { cuda_sparse_clip(stream, a); }
  void operator()(const SparseThreshold& a) const { cuda_sparse_threshold(stream, a); }
  void operator()(const SparseSelection& a) const { cuda_sparse_select(stream, a); }
  void operator()(const SparseSum& a) const { cuda_sparse_sum(stream, a); }
};

TEST(CudaSparse, ClipsByTheNormWithoutTheLossScale) {
  Stream stream(Device{}, StreamUse::compute);
  const Values values = random_values(70'001, "gradient");
  const float loss_scale = 1024;
  for (const std::size_t misaligned : {0, 4}) {
    const DeviceMemory gradient(values, DType::f32, misaligned), scratch(sparse_scratch_bytes(70'001));
    const auto clip_by = [&](auto operation) {
      float clip = -1;
      operation(SparseClip{.count = 70'001,
                           .gradient = gradient.as<float>(),
                           .loss_scale = &loss_scale,
                           .most = 0.01f,
                           .clip = &clip,
                           .scratch = scratch.data()});
      return clip;
    };
    const float expected = clip_by(ChosenByCpu{stream});
    EXPECT_LT(expected, 1);
    EXPECT_FLOAT_EQ(in_any_order([&] { return Values{clip_by(ChosenByGpu{stream})}; })[0], expected);
  }
}

bool same_or_both_nan(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(CudaSparse, ChosenElementsEqualTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  for (const std::int64_t count : {1, 100, 4096, 9001, 70'000}) {
    for (const std::int64_t share : {1, 10, 500}) {
      for (const float momentum : {0.0f, 0.5f}) {
        for (const bool finite : {true, false}) {
          SCOPED_TRACE(fmt::format("1 of {} of {}, momentum {}", share, count, momentum));
          Choice choice(count, std::max<std::int64_t>(1, count / share));
          choice.momentum = momentum;
          if (!finite) choice.gradient.as<float>()[count / 2] = std::nanf("");
          const Values expected = choice.run(ChosenByCpu{stream});
          const Values found = in_any_order([&] { return choice.run(ChosenByGpu{stream}); });
          EXPECT_TRUE(std::ranges::equal(found, expected, same_or_both_nan));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
