// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
T from_bits(int bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

// The value of the bits in double precision, from sign, exponent and mantissa: the definition of the format.
double value_of(int bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? double{kNan} : sign * double{kInfinity};
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

// Every bit pattern has the value of the format's definition and survives a conversion to float and back.
template <typename T>
void expect_exact_round_trip(int exponent_bits, int mantissa_bits) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = static_cast<float>(from_bits<T>(bits));
    const double expected = value_of(bits, exponent_bits, mantissa_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      const T back(value);
      ASSERT_TRUE(std::isnan(static_cast<float>(back))) << std::hex << bits;
      ASSERT_EQ(back.bits & 0x8000, bits & 0x8000) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(value, expected) << std::hex << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << std::hex << bits;
    ASSERT_EQ(T(value).bits, bits) << std::hex << bits;
  }
}

// Between neighbouring finite values: below the middle rounds down, above rounds up, the middle to even.
template <typename T>
void expect_nearest_even(int largest_finite) {
  for (int bits = 0; bits < largest_finite; ++bits) {
    const double low = static_cast<float>(from_bits<T>(bits));
    const double high = static_cast<float>(from_bits<T>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // exact: one bit more than the format has
    const int even = bits % 2 == 0 ? bits : bits + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const int sign_bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(T(sign * middle).bits, even | sign_bit) << std::hex << bits;
      ASSERT_EQ(T(sign * std::nextafter(middle, 0.0f)).bits, bits | sign_bit) << std::hex << bits;
      ASSERT_EQ(T(sign * std::nextafter(middle, kInfinity)).bits, (bits + 1) | sign_bit) << std::hex << bits;
    }
  }
}

TEST(Half, EveryPatternRoundTrips) { expect_exact_round_trip<Half>(5, 10); }
TEST(BFloat16, EveryPatternRoundTrips) { expect_exact_round_trip<BFloat16>(8, 7); }
TEST(Half, RoundsToNearestEvenEverywhere) { expect_nearest_even<Half>(0x7bff); }
TEST(BFloat16, RoundsToNearestEvenEverywhere) { expect_nearest_even<BFloat16>(0x7f7f); }

TEST(Half, KnownValues) {
  EXPECT_EQ(Half(1.0f).bits, 0x3c00);
  EXPECT_EQ(Half(-2.0f).bits, 0xc000);
  EXPECT_EQ(Half(0.1f).bits, 0x2e66);
  EXPECT_EQ(Half(-0.0f).bits, 0x8000);
  EXPECT_EQ(Half(1.0f + 0x1p-11f).bits, 0x3c00);      // a tie, to even below
  EXPECT_EQ(Half(1.0f + 3 * 0x1p-11f).bits, 0x3c02);  // a tie, to even above
  EXPECT_EQ(Half(0x1p-24f).bits, 0x0001);             // the smallest subnormal
  EXPECT_EQ(Half(0x1p-25f).bits, 0x0000);             // a tie with zero
  EXPECT_EQ(Half(std::nextafter(0x1p-25f, 1.0f)).bits, 0x0001);
  EXPECT_EQ(Half(0x1p-14f).bits, 0x0400);  // the smallest normal
}

TEST(Half, OverflowsToInfinityFromHalfAStepAboveTheLargestValue) {
  EXPECT_EQ(Half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Half(kInfinity).bits, 0x7c00);
}

TEST(BFloat16, KnownValues) {
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(-0.0f).bits, 0x8000);
  EXPECT_EQ(BFloat16(0.1f).bits, 0x3dcd);
  EXPECT_EQ(BFloat16(1.0f + 0x1p-8f).bits, 0x3f80);      // a tie, to even below
  EXPECT_EQ(BFloat16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);  // a tie, to even above
  EXPECT_EQ(BFloat16(std::nextafter(0x1.ffp127f, 0.0f)).bits, 0x7f7f);
  EXPECT_EQ(BFloat16(0x1.ffp127f).bits, 0x7f80);  // half a step above the largest value
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-kInfinity).bits, 0xff80);
}

TEST(SixteenBits, NanRemainsNanForEveryPayload) {
  for (const std::uint32_t word : {0x7f800001u, 0x7fffffffu, 0x7fc00000u, 0xff800001u, 0xffffffffu}) {
    const auto nan = std::bit_cast<float>(word);
    EXPECT_TRUE(std::isnan(static_cast<float>(Half(nan)))) << std::hex << word;
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(nan)))) << std::hex << word;
  }
}

TEST(DType, KnowsSizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::f16), sizeof(Half));
  EXPECT_EQ(size_of(DType::bf16), sizeof(BFloat16));
  EXPECT_EQ(size_of(DType::u8), 1u);
  EXPECT_EQ(size_of(DType::i32), sizeof(std::int32_t));
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(dtype_of<Half>, DType::f16);
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape({64, 3, 7, 7}).elements(), 64 * 3 * 7 * 7);
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape({5, 0}).elements(), 0);
  EXPECT_EQ(Shape({1 << 20, 1 << 20}).elements(), std::int64_t{1} << 40);
}

TEST(Shape, ComparesAndPrints) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2}), Shape({2, 0}));
  EXPECT_EQ(to_string(Shape({64, 3, 7, 7})), "[64, 3, 7, 7]");
  EXPECT_EQ(to_string(Shape()), "[]");
}

TEST(Shape, RefusesTooManyOrNegativeDimensions) {
  EXPECT_THROW(Shape({1, 2, 3, 4, 5, 6, 7}), Error);
  EXPECT_THROW(Shape({2, -1}), Error);
}

TEST(Tensor, IsAViewOfABuffer) {
  const Buffer buffer(6 * sizeof(float), Device{});
  const Tensor tensor{.data = buffer.data(), .shape = {2, 3}};
  EXPECT_EQ(tensor.bytes(), buffer.bytes());
  const Tensor copy = tensor;
  copy.as<float>()[5] = 4.0f;
  EXPECT_EQ(tensor.as<float>()[5], 4.0f);
  EXPECT_EQ(tensor.as<float>().size(), 6u);
}

TEST(Tensor, RefusesTheWrongElementType) {
  float value = 0;
  const Tensor tensor{.data = &value, .shape = {1}};
  EXPECT_THROW(tensor.as<std::int32_t>(), Error);
  EXPECT_THROW(tensor.as<Half>(), Error);
}

}  // namespace
}  // namespace lockstep
