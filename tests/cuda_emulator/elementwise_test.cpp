// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elementwise.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/cuda/dropout.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

constexpr std::int64_t kElementCounts[] = {0, 1, 3, 4, 7, 8, 9, 1023, 2048, 5001};
constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::relu6};

class CudaElementwise : public testing::Test {
 protected:
  // Values of the type, some beyond the upper kink of relu6.
  static Values values(std::int64_t count, std::string_view purpose, DType type) {
    Values result = random_values(count, purpose);
    for (float& value : result) value *= 9;
    return rounded(result, type);
  }
  // Calls test(type, count, bytes of misalignment).
  template <typename Test>
  static void for_each_case(Test test) {
    for (const DType type : kElementTypes) {
      for (const std::int64_t count : kElementCounts) {
        for (const std::size_t misaligned : {std::size_t{0}, size_of(type)}) {
          SCOPED_TRACE(fmt::format("{} of {}, {} bytes off", count, name_of(type), misaligned));
          test(type, count, misaligned);
        }
      }
    }
  }
  static void expect_bits(const Values& actual, const Values& expected) { EXPECT_EQ(actual, expected); }

  Stream stream_{Device{}, StreamUse::compute};
  Backend& cpu_ = backend_for(Device{});
};

TEST_F(CudaElementwise, TheScaleOfFp16SumsEqualsTheCpu) {
  for_each_case([&](DType type, std::int64_t count, std::size_t misaligned) {
    const Values x = values(count, "x", type);
    std::int32_t cpus = 0;
    float scale = 0, inverse = 0;
    cpu_.largest_magnitude(stream_,
                           {.type = DType::f32, .count = count, .values = x.data(), .largest = &cpus});
    cpu_.half_scale(stream_, {.largest = &cpus, .terms = 6, .scale = &scale, .inverse = &inverse});
    const DeviceMemory memory(x, type, misaligned), largest(std::vector<std::int32_t>{-1});
    const DeviceMemory scales(Values{0, 0}, DType::f32), cast(x.size() * sizeof(Half));
    const Values half = in_any_order([&] {
      cuda_largest_magnitude(
          stream_,
          {.type = type, .count = count, .values = memory.data(), .largest = largest.as<std::int32_t>()});
      cuda_half_scale(stream_, {.largest = largest.as<const std::int32_t>(),
                                .terms = 6,
                                .scale = scales.as<float>(),
                                .inverse = scales.as<float>() + 1});
      cuda_cast(stream_, {.count = count,
                          .from_type = type,
                          .to_type = DType::f16,
                          .from = memory.data(),
                          .to = cast.data(),
                          .factor = scales.as<const float>()});
      return cast.values(DType::f16);
    });
    EXPECT_EQ(largest.items<std::int32_t>(), std::vector<std::int32_t>{cpus});
    EXPECT_EQ(scales.values(DType::f32), (Values{scale, inverse}));
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(half[i], rounded(scale * x[i], DType::f16));
  });
}

TEST_F(CudaElementwise, ActivationsEqualTheCpu) {
  for_each_case([&](DType type, std::int64_t count, std::size_t misaligned) {
    for (const Activation activation : kActivations) {
      const Values x = values(count, "x", type), y_gradient = values(count, "y gradient", type);
      Values y(x.size()), x_gradient(x.size());
      cpu_.activation_forward(stream_, {activation, DType::f32, count, x.data(), y.data()});
      cpu_.activation_backward(
          stream_, {activation, DType::f32, count, y.data(), y_gradient.data(), x_gradient.data()});
      const DeviceMemory x_memory(x, type, misaligned), y_gradient_memory(y_gradient, type, misaligned);
      DeviceMemory y_memory(x.size() * size_of(type), misaligned),
          x_gradient_memory(x.size() * size_of(type));
      EXPECT_EQ(
          in_any_order([&] {
            y_memory.spoil();
            cuda_activation_forward(stream_, {activation, type, count, x_memory.data(), y_memory.data()});
            return y_memory.values(type);
          }),
          y);
      EXPECT_EQ(in_any_order([&] {
                  x_gradient_memory.spoil();
                  cuda_activation_backward(stream_, {activation, type, count, y_memory.data(),
                                                     y_gradient_memory.data(), x_gradient_memory.data()});
                  return x_gradient_memory.values(type);
                }),
                x_gradient);
    }
  });
}

TEST_F(CudaElementwise, SmoothActivationsAreCloseToTheCpus) {
  for_each_case([&](DType type, std::int64_t count, std::size_t misaligned) {
    for (const Activation activation : {Activation::sigmoid, Activation::tanh, Activation::gelu}) {
      const Values x = values(count, "x", type), y_gradient = values(count, "y gradient", type);
      Values y(x.size()), x_gradient(x.size());
      cpu_.activation_forward(stream_, {activation, DType::f32, count, x.data(), y.data()});
      const DeviceMemory x_memory(x, type, misaligned), y_gradient_memory(y_gradient, type, misaligned),
          y_memory(x.size() * size_of(type), misaligned), x_gradient_memory(x.size() * size_of(type));
      const double precision = type == DType::f32 ? 1e-6 : 1.01 * precision_of(type);
      const Values emulated = in_any_order([&] {
        cuda_activation_forward(stream_, {activation, type, count, x_memory.data(), y_memory.data()});
        return y_memory.values(type);
      });
      expect_near(emulated, widen(y), precision, 1e-6);
      const Values& read = reads_input(activation) ? x : emulated;
      cpu_.activation_backward(
          stream_, {activation, DType::f32, count, read.data(), y_gradient.data(), x_gradient.data()});
      const Values emulated_gradient = in_any_order([&] {
        cuda_activation_backward(
            stream_, {activation, type, count, reads_input(activation) ? x_memory.data() : y_memory.data(),
                      y_gradient_memory.data(), x_gradient_memory.data()});
        return x_gradient_memory.values(type);
      });
      expect_near(emulated_gradient, widen(x_gradient), precision, 1e-5);
    }
  });
}

TEST_F(CudaElementwise, SumsAndProductsAreRoundedOnce) {
  for_each_case([&](DType type, std::int64_t count, std::size_t misaligned) {
    const Values a = values(count, "a", type), b = values(count, "b", type);
    Values sum(a.size()), product(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum[i] = rounded(a[i] + b[i], type);
      product[i] = rounded(a[i] * 0.3f, type);
    }
    const DeviceMemory b_memory(b, type);
    DeviceMemory memory(a, type, misaligned);
    cuda_add(stream_, {type, count, memory.data(), b_memory.data(), memory.data()});
    EXPECT_EQ(memory.values(type), sum) << "in place";
    EXPECT_EQ(in_any_order([&] {
                memory.write(a, type);
                cuda_scale(stream_, {type, count, 0.3f, memory.data()});
                return memory.values(type);
              }),
              product);
  });
}

TEST_F(CudaElementwise, CastsRoundToNearestEven) {
  for_each_case([&](DType from, std::int64_t count, std::size_t misaligned) {
    for (const DType to : kElementTypes) {
      const Values x = values(count, "x", from);
      const DeviceMemory from_memory(x, from, misaligned);
      const DeviceMemory to_memory(x.size() * size_of(to));
      EXPECT_EQ(in_any_order([&] {
                  cuda_cast(stream_, {count, from, to, from_memory.data(), to_memory.data()});
                  return to_memory.values(to);
                }),
                rounded(x, to));
    }
  });
  const DeviceMemory memory(4);
  EXPECT_THROW(cuda_cast(stream_, {1, DType::f32, DType::f16, memory.data(), memory.data()}), Error);
}

TEST_F(CudaElementwise, CastsMayAddToTheDestination) {
  const float factor = 0x1p-4f;
  const DeviceMemory factor_memory(Values{factor}, DType::f32);
  for_each_case([&](DType from, std::int64_t count, std::size_t misaligned) {
    for (const DType to : kElementTypes) {
      const Values x = values(count, "x", from), before = values(count, "before", to);
      const DeviceMemory from_memory(x, from, misaligned);
      DeviceMemory to_memory(before, to);
      for (const bool multiplied : {false, true}) {
        Values expected(x.size());
        for (std::size_t i = 0; i < x.size(); ++i)
          expected[i] = rounded(before[i] + (multiplied ? factor : 1) * x[i], to);
        EXPECT_EQ(in_any_order([&] {
                    to_memory.write(before, to);
                    cuda_cast(stream_, {.count = count,
                                        .from_type = from,
                                        .to_type = to,
                                        .from = from_memory.data(),
                                        .to = to_memory.data(),
                                        .factor = multiplied ? factor_memory.as<const float>() : nullptr,
                                        .write = Write::accumulate});
                    return to_memory.values(to);
                  }),
                  expected);
      }
    }
  });
}

TEST_F(CudaElementwise, FindsASingleInfinityOrNaN) {
  const DeviceMemory finite(sizeof(std::int32_t));
  for_each_case([&](DType type, std::int64_t count, std::size_t misaligned) {
    DeviceMemory memory(values(count, "x", type), type, misaligned);
    const auto judged = [&](Write write) {
      cuda_all_finite(stream_, {type, count, memory.data(), finite.as<std::int32_t>(), write});
      return *finite.as<std::int32_t>();
    };
    EXPECT_EQ(judged(Write::overwrite), 1);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (std::int64_t place = 0; place < count; place += 1 + count / 3) {
        Values spoiled = values(count, "x", type);
        spoiled[static_cast<std::size_t>(place)] = bad;
        memory.write(spoiled, type);
        EXPECT_EQ(judged(Write::overwrite), 0) << place;
      }
    }
    const std::int32_t last = *finite.as<std::int32_t>();
    memory.write(values(count, "x", type), type);
    EXPECT_EQ(judged(Write::accumulate), last);
    EXPECT_EQ(judged(Write::overwrite), 1);
  });
}

TEST_F(CudaElementwise, SumsSquares) {
  const DeviceMemory memory_of_sums(kSquareSums * sizeof(double));
  const std::span<double> sums(memory_of_sums.as<double>(), kSquareSums);
  for_each_case([&](DType type, std::int64_t count, std::size_t misaligned) {
    const Values x = rounded(values(count, "x", type), type);
    const DeviceMemory memory(x, type, misaligned);
    double expected = 0;
    for (const float value : x) expected += double{value} * double{value};
    const auto added = [&](Write write) {
      cuda_sum_squares(stream_, {type, count, memory.data(), sums.data(), write});
      return std::accumulate(sums.begin(), sums.end(), 0.0);
    };
    std::ranges::fill(sums, -1);
    EXPECT_NEAR(added(Write::overwrite), expected, 1e-12 * expected);
    EXPECT_NEAR(added(Write::accumulate), 2 * expected, 1e-12 * expected);
  });
}

TEST_F(CudaElementwise, SumsSquaresOfMoreThanAllBlocksReadAtOnce) {
  const DeviceMemory sums(kSquareSums * sizeof(double));
  for (const DType type : {DType::f32, DType::f16}) {
    const auto at_once = 16 / static_cast<std::int64_t>(size_of(type));  // elements of a thread
    const std::int64_t count = kSquareSums * kBlockThreads * at_once + 1027;
    const DeviceMemory memory(Values(static_cast<std::size_t>(count), 0.5f), type);
    cuda_sum_squares(stream_, {type, count, memory.data(), sums.as<double>()});
    const std::vector<double> parts = sums.items<double>();
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), 0.0), 0.25 * static_cast<double>(count));
  }
}

TEST_F(CudaElementwise, SumsOfSquaresDoNotDependOnTheSizeOfBlocks) {
  const DeviceMemory memory(values(5001, "x", DType::f32), DType::f32), sums(kSquareSums * sizeof(double));
  const auto parts = [&](int threads) {
    set_block_threads(threads);
    cuda_sum_squares(stream_, {DType::f32, 5001, memory.data(), sums.as<double>()});
    set_block_threads(kBlockThreads);
    return sums.items<double>();
  };
  EXPECT_EQ(parts(64), parts(512));
}

TEST_F(CudaElementwise, TheLargestNumbersAreFinite) {
  const DeviceMemory finite(sizeof(std::int32_t));
  const float largest[] = {std::numeric_limits<float>::max(), 65504.0f, 0x1.fep127f};
  for (std::size_t i = 0; i < 3; ++i) {
    const DeviceMemory memory(Values{largest[i], -largest[i], 0, 1e-45f}, kElementTypes[i]);
    cuda_all_finite(stream_, {kElementTypes[i], 4, memory.data(), finite.as<std::int32_t>()});
    EXPECT_EQ(*finite.as<std::int32_t>(), 1) << name_of(kElementTypes[i]);
  }
}

TEST_F(CudaElementwise, DropoutHasTheCpusMask) {
  const std::vector<SampleId> samples = {{1, 7}, {2, 7}, {0, 123456}};
  const DeviceMemory ids(samples);
  for (const DType type : kElementTypes) {
    for (const std::int64_t features : {1, 3, 8, 147, 2048, 2049}) {
      SCOPED_TRACE(fmt::format("{} features in {}", features, name_of(type)));
      DropoutArguments arguments{.batch = static_cast<std::int64_t>(samples.size()),
                                 .features = features,
                                 .samples = ids.as<const SampleId>(),
                                 .key = key_for(1, "test"),
                                 .probability = 0.4f};
      const Values x = values(arguments.batch * features, "x", type);
      Values expected(x.size());
      arguments.x = x.data();
      arguments.y = expected.data();
      cpu_.dropout(stream_, arguments);
      DeviceMemory memory(x.size() * size_of(type));
      arguments.type = type;
      arguments.x = memory.data();
      arguments.y = memory.data();
      EXPECT_EQ(in_any_order([&] {
                  memory.write(x, type);
                  cuda_dropout(stream_, arguments);
                  return memory.values(type);
                }),
                rounded(expected, type));
    }
  }
  EXPECT_THROW(cuda_dropout(stream_, {.probability = 1}), Error);
}

TEST_F(CudaElementwise, BlocksMayHaveAnyNumberOfWholeWarps) {
  const Values x = values(5001, "x", DType::f32);
  Values expected(x.size());
  cpu_.activation_forward(stream_, {Activation::relu, DType::f32, 5001, x.data(), expected.data()});
  for (const int threads : {32, 64, 512}) {
    set_block_threads(threads);
    const DeviceMemory x_memory(x, DType::f32), y_memory(x.size() * sizeof(float));
    cuda_activation_forward(stream_, {Activation::relu, DType::f32, 5001, x_memory.data(), y_memory.data()});
    expect_bits(y_memory.values(DType::f32), expected);
  }
  set_block_threads(kBlockThreads);
  for (const int threads : {0, 31, 100, 544}) EXPECT_THROW(set_block_threads(threads), ConfigError);
}

}  // namespace
}  // namespace lockstep
