// SPDX-License-Identifier: Apache-2.0
//
// Normal numbers of Random: Box-Muller with its own logarithm and cosine, made of additions, multiplications,
// divisions and square roots in double, whose results IEEE 754 prescribes. So the numbers have the same bits
// on every processor and with every C library, and the compiler can vectorise them. About one in ten million
// differs from the correctly rounded result, by the last bit. This file is compiled without fused
// multiply-adds.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "core/random.h"
#include "core/system/processors.h"

#define INLINE inline __attribute__((always_inline))

namespace lockstep {
namespace {

// value^0 * coefficients[0] + value^1 * coefficients[1] + ..
template <std::size_t N>
INLINE double polynomial(double value, const double (&coefficients)[N]) {
  double sum = coefficients[N - 1];
  for (std::size_t i = N - 1; i-- > 0;) sum = sum * value + coefficients[i];
  return sum;
}

// Logarithm of a normal (not subnormal) number: log(m 2^e) = e log(2) + 2 atanh((m - 1) / (m + 1)), with m
// between sqrt(1/2) and sqrt(2).
INLINE double logarithm(double x) {
  constexpr std::uint64_t kRootOfHalf = std::bit_cast<std::uint64_t>(std::numbers::sqrt2 / 2);
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  constexpr std::int64_t kTwoTo52 = 0x4330000000000000;  // the bits of 2^52: an integer below it, as a double
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) - kRootOfHalf + (std::uint64_t{1024} << 52);
  const auto biased = static_cast<std::int64_t>(bits >> 52);  // e + 1024
  const double exponent = std::bit_cast<double>(biased | kTwoTo52) - (0x1p52 + 1024);
  const double m = std::bit_cast<double>((bits & kMantissa) + kRootOfHalf);
  const double s = (m - 1) / (m + 1);
  constexpr double kAtanh[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,
                               2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19};
  return exponent * std::numbers::ln2 + s * polynomial(s * s, kAtanh);
}

// Cosine of turn / 2^32 of a full turn: splits off the nearest quarter turn and evaluates a polynomial of the
// rest.
INLINE double cosine_of_turn(std::uint32_t turn) {
  const std::uint32_t quarter = (turn + (1u << 29)) >> 30;  // modulo 4
  const auto rest = static_cast<std::int32_t>(turn - (quarter << 30));
  const double x = rest * (2 * std::numbers::pi * 0x1p-32);
  constexpr double kCosine[] = {1.0,         -1.0 / 2,       1.0 / 24,        -1.0 / 720,
                                1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200.0};
  constexpr double kSine[] = {1.0,          -1.0 / 6,        1.0 / 120,          -1.0 / 5040,
                              1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
  const double cosine = polynomial(x * x, kCosine);
  const double sine = x * polynomial(x * x, kSine);
  const double value = quarter % 2 == 0 ? cosine : sine;  // cos, -sin, -cos, sin
  return quarter == 1 || quarter == 2 ? -value : value;
}

INLINE float box_muller(std::uint32_t radius, std::uint32_t turn) {
  const double uniform = (radius + 1.0) * 0x1p-32;  // (0, 1]
  return static_cast<float>(std::sqrt(-2.0 * logarithm(uniform)) * cosine_of_turn(turn));
}

// A Philox block gives two numbers; make_numbers() makes kBlocks blocks at a time.
constexpr std::size_t kBlocks = 16;
constexpr std::size_t kNumbers = 2 * kBlocks;

INLINE void make_numbers(std::uint64_t first_block, std::uint64_t purpose, PhiloxKey key, float* numbers) {
  std::uint32_t words[4][kBlocks];
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const std::uint64_t block = first_block + i;
    const PhiloxCounter made =
        philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                static_cast<std::uint32_t>(purpose), static_cast<std::uint32_t>(purpose >> 32)},
               key);
    for (std::size_t word = 0; word < 4; ++word) words[word][i] = made[word];
  }
  float even[kBlocks], odd[kBlocks];
  for (std::size_t i = 0; i < kBlocks; ++i) even[i] = box_muller(words[0][i], words[1][i]);
  for (std::size_t i = 0; i < kBlocks; ++i) odd[i] = box_muller(words[2][i], words[3][i]);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    numbers[2 * i] = even[i];
    numbers[2 * i + 1] = odd[i];
  }
}

void make_all(std::uint64_t purpose, PhiloxKey key, std::span<float> values) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    std::size_t done = 0;
    for (; done + kNumbers <= values.size(); done += kNumbers)
      make_numbers(done / 2, purpose, key, values.data() + done);
    if (done == values.size()) return;
    float rest[kNumbers];
    make_numbers(done / 2, purpose, key, rest);
    std::copy_n(rest, values.size() - done, values.data() + done);
  });
}

}  // namespace

float Random::normal(std::uint64_t index) const { return box_muller(bits(2 * index), bits(2 * index + 1)); }

void Random::normals(std::span<float> values) const {
  make_all(purpose_, {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)}, values);
}

}  // namespace lockstep
