// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

// The definition in double precision.
Doubles reference_softmax(const SoftmaxShape& shape, const Doubles& x) {
  Doubles y(x.size());
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    const auto at = [&](std::int64_t channel) {
      return static_cast<std::size_t>(shape.row_begin(row) + channel * shape.positions);
    };
    double sum = 0;
    for (std::int64_t k = 0; k < shape.channels; ++k) sum += std::exp(x[at(k)]);
    for (std::int64_t k = 0; k < shape.channels; ++k) y[at(k)] = std::exp(x[at(k)]) / sum;
  }
  return y;
}

TEST(Softmax, MatchesTheDefinitionAndItsSlopes) {
  Stream stream(Device{}, StreamUse::compute);
  Backend& backend = backend_for(Device{});
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const SoftmaxShape& size :
         {SoftmaxShape{1, 1, 1}, {3, 7, 1}, {5, 4, 9}, {70, 300, 1}, {2, 65, 100}}) {
      SoftmaxShape shape = size;
      shape.type = type;
      const std::int64_t count = shape.rows() * shape.channels;
      SCOPED_TRACE(fmt::format("{} rows of {} in {}", shape.rows(), shape.channels, name_of(type)));
      const double precision = type == DType::f32 ? 1e-6 : type == DType::f16 ? 1e-3 : 8e-3;
      Values x = random_values(count, "x");
      for (float& value : x) value *= 4;
      x = rounded(x, type);
      const Values y_gradient = rounded(random_values(count, "y gradient"), type);
      const GuardedMemory input(x, type), output(x.size() * size_of(type), type), given(y_gradient, type),
          result(x.size() * size_of(type), type);
      backend.softmax_forward(stream, {shape, input.data(), output.data()});
      backend.softmax_backward(stream, {shape, output.data(), given.data(), result.data()});
      EXPECT_TRUE(output.margin_intact() && result.margin_intact());
      const Doubles exact = reference_softmax(shape, widen(x));
      const Values apart = output.values(), slopes = result.values();
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(apart[i], exact[i], precision) << i;
      const Doubles direction = widen(random_values(count, "direction"));
      const auto objective = [&](const Doubles& at) {
        return dot(reference_softmax(shape, at), widen(y_gradient));
      };
      EXPECT_NEAR(dot(widen(slopes), direction), slope(widen(x), direction, objective),
                  precision * std::sqrt(static_cast<double>(count)));
      backend.softmax_forward(stream, {shape, input.data(), input.data()});
      backend.softmax_backward(stream, {shape, output.data(), given.data(), given.data()});
      EXPECT_EQ(input.values(), apart);
      EXPECT_EQ(given.values(), slopes);
    }
  }
}

TEST(Softmax, LargeInputsDoNotOverflow) {
  Stream stream(Device{}, StreamUse::compute);
  const Values x = {1000, 999, -1000};
  Values y(3);
  backend_for(Device{}).softmax_forward(stream, {{.batch = 1, .channels = 3}, x.data(), y.data()});
  EXPECT_NEAR(y[0], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_EQ(y[2], 0);
}

// As in PyTorch: a row with NaN or infinity, or of -infinity alone, is NaN.
TEST(Softmax, RowsWithoutALargestNumberAreNan) {
  Stream stream(Device{}, StreamUse::compute);
  const float nan = std::nanf(""), infinity = HUGE_VALF;
  const Values x = {1, nan, 2, infinity, 0, 1, -infinity, -infinity, -infinity, -infinity, 3, 3};
  Values y(x.size());
  backend_for(Device{}).softmax_forward(stream, {{.batch = 4, .channels = 3}, x.data(), y.data()});
  for (std::size_t i = 0; i < 9; ++i) EXPECT_TRUE(std::isnan(y[i])) << i;
  EXPECT_EQ(Values(y.begin() + 9, y.end()), (Values{0, 0.5f, 0.5f}));
}

}  // namespace
}  // namespace lockstep
