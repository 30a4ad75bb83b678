// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/pooling.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

// Windows over [N, H, W, C] in double precision. Calls visit(output element, input element) for each element
// of each window, in the order of places.
template <typename Visit>
void for_each_window(const CudaPooling& p, Visit visit) {
  const auto at = [&](std::int64_t n, std::int64_t height, std::int64_t width, std::int64_t row,
                      std::int64_t column, std::int64_t c) {
    return static_cast<std::size_t>(((n * height + row) * width + column) * p.channels + c);
  };
  for (std::int64_t n = 0; n < p.batch; ++n) {
    for (std::int64_t out_row = 0; out_row < p.out_height; ++out_row) {
      for (std::int64_t out_column = 0; out_column < p.out_width; ++out_column) {
        for (std::int64_t i = 0; i < p.kernel_height * p.kernel_width; ++i) {
          const std::int64_t row = out_row * p.stride - p.padding + i / p.kernel_width;
          const std::int64_t column = out_column * p.stride - p.padding + i % p.kernel_width;
          if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
          for (std::int64_t c = 0; c < p.channels; ++c) {
            visit(at(n, p.out_height, p.out_width, out_row, out_column, c),
                  at(n, p.height, p.width, row, column, c));
          }
        }
      }
    }
  }
}

struct PoolingReference {
  Doubles y, x_gradient;
};

PoolingReference reference(const CudaPooling& p, const Doubles& x, const Doubles& y_gradient) {
  const std::size_t outputs = y_gradient.size();
  PoolingReference r{.y = Doubles(outputs), .x_gradient = Doubles(x.size())};
  Doubles count(outputs);
  std::vector<std::size_t> largest(outputs, x.size());
  for_each_window(p, [&](std::size_t out, std::size_t in) {
    count[out] += 1;
    r.y[out] += x[in];
    if (largest[out] == x.size() || x[in] > x[largest[out]]) largest[out] = in;
  });
  if (p.kind == PoolingKind::max) {
    for (std::size_t i = 0; i < outputs; ++i) {
      r.y[i] = x[largest[i]];
      r.x_gradient[largest[i]] += y_gradient[i];
    }
    return r;
  }
  for (std::size_t i = 0; i < outputs; ++i) r.y[i] /= count[i];
  for_each_window(p,
                  [&](std::size_t out, std::size_t in) { r.x_gradient[in] += y_gradient[out] / count[out]; });
  return r;
}

struct PoolingTensors {
  const CudaPooling pooling;
  Values x, y_gradient;

  explicit PoolingTensors(const CudaPooling& p)
      : pooling(p),
        x(rounded(random_values(p.batch * p.height * p.width * p.channels, "x"), p.type)),
        y_gradient(rounded(random_values(p.batch * p.out_height * p.out_width * p.channels, "y gradient"),
                           p.type)) {}

  // Returns y followed by x's gradient.
  Values emulated(std::size_t misaligned) const {
    Stream stream(Device{}, StreamUse::compute);
    const DType type = pooling.type;
    const DeviceMemory from(x, type, misaligned), given(y_gradient, type), saved(pooling.saved_bytes()),
        y(y_gradient.size() * size_of(type), misaligned), x_gradient(x.size() * size_of(type), misaligned),
        again(y_gradient.size() * size_of(type));
    cuda_pooling_forward(stream, pooling, from.data(), y.data(),
                         pooling.saved_bytes() == 0 ? nullptr : saved.data());
    cuda_pooling_backward(
        stream, pooling,
        {.y_gradient = given.data(), .saved = saved.data(), .x_gradient = x_gradient.data()});
    cuda_pooling_forward(stream, pooling, from.data(), again.data(), nullptr);
    Values both = y.values(type);
    EXPECT_EQ(std::memcmp(again.data(), y.data(), y_gradient.size() * size_of(type)), 0)
        << "the output must not depend on saving the places";
    const Values gradient = x_gradient.values(type);
    both.insert(both.end(), gradient.begin(), gradient.end());
    return both;
  }
};

void expect_reference(const PoolingOptions& options, DType type, const Shape& input) {
  const PoolingTensors tensors(CudaPooling::from(options, type, input));
  const PoolingReference expected = reference(tensors.pooling, widen(tensors.x), widen(tensors.y_gradient));
  Doubles both = expected.y;
  both.insert(both.end(), expected.x_gradient.begin(), expected.x_gradient.end());
  for (const std::size_t misaligned : {std::size_t{0}, size_of(type)}) {
    const Values actual = in_any_order([&] { return tensors.emulated(misaligned); });
    expect_near(actual, both, 2 * precision_of(type), 1e-6);
  }
}

TEST(CudaPooling, MatchesTheDefinition) {
  std::vector<PoolingOptions> windows;
  for (const PoolingKind kind : {PoolingKind::max, PoolingKind::average}) {
    windows.push_back({.kind = kind, .kernel = 2, .stride = 2});
    windows.push_back({.kind = kind, .kernel = 3, .stride = 2, .padding = 1});
    windows.push_back({.kind = kind, .kernel = 3, .stride = 1, .padding = 1});
    windows.push_back({.kind = kind, .kernel = 2, .stride = 1, .padding = 1});
    windows.push_back({.kind = kind, .kernel = 1, .stride = 2});
    windows.push_back({.kind = kind, .kernel = 2, .stride = 3});
    windows.push_back({.kind = kind, .global = true});
  }
  for (const DType type : kElementTypes) {
    for (const std::int64_t channels : {1, 3, 16, 17, 40}) {
      for (const auto& [height, width] : {std::pair{1, 1}, {7, 7}, {7, 8}}) {
        for (const PoolingOptions& options : windows) {
          if (!options.global && height + 2 * options.padding < options.kernel) continue;
          SCOPED_TRACE(fmt::format("{} channels of {}x{} in {}, {} {}/{}/{} {}", channels, height, width,
                                   name_of(type), options.kind == PoolingKind::max ? "max" : "average",
                                   options.kernel, options.stride, options.padding, options.global));
          expect_reference(options, type, {2, channels, height, width});
        }
      }
    }
  }
}

TEST(CudaPooling, WindowsOfMoreThan256PlacesWork) {
  for (const PoolingKind kind : {PoolingKind::max, PoolingKind::average}) {
    expect_reference({.kind = kind, .global = true}, DType::f32, {1, 8, 20, 17});
    expect_reference({.kind = kind, .global = true}, DType::f16, {1, 3, 16, 17});
    expect_reference({.kind = kind, .kernel = 16, .stride = 4}, DType::f32, {1, 4, 24, 20});
  }
}

TEST(CudaPooling, ANaNIsTheMaximum) {
  PoolingTensors tensors(CudaPooling::from({.kernel = 2, .stride = 2}, DType::f32, {1, 4, 4, 4}));
  for (const std::size_t place : {0, 5 * 4, 15 * 4}) {
    PoolingTensors spoiled = tensors;
    spoiled.x[place] = std::nanf("");
    const Values actual = spoiled.emulated(0);
    EXPECT_EQ(std::count_if(actual.begin(), actual.begin() + 16, [](float v) { return std::isnan(v); }), 1);
  }
  PoolingTensors lowest = tensors;
  std::ranges::fill(lowest.x, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(lowest.emulated(0)[0], -std::numeric_limits<float>::infinity());
}

// The check precedes the launch, so no memory is needed. Input samples have 2^31 - 88,048 elements.
TEST(CudaPooling, OutputsWithMoreElementsThanAnIntHoldsAreRefused) {
  Stream stream(Device{}, StreamUse::compute);
  const CudaPooling pooling =
      CudaPooling::from({.kind = PoolingKind::average, .kernel = 2, .stride = 1, .padding = 1}, DType::f16,
                        {1, 16, 11585, 11585});
  ASSERT_EQ(pooling.out_height, 11586);
  EXPECT_THROW(cuda_pooling_forward(stream, pooling, nullptr, nullptr, nullptr), Error);
  EXPECT_THROW(cuda_pooling_backward(stream, pooling, {}), Error);
}

TEST(CudaPooling, MaximumNeedsTheMemorySavedByForward) {
  Stream stream(Device{}, StreamUse::compute);
  EXPECT_THROW(cuda_pooling_backward(stream, CudaPooling::from({}, DType::f32, {1, 1, 4, 4}), {}), Error);
}

}  // namespace
}  // namespace lockstep
