// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/codec_blocks.h"

namespace lockstep {
namespace {

// Block counts around a thread's piece.
constexpr std::int64_t kBlockCounts[] = {0, 1, 31, 32, 33, 200};

class CodecKernels : public testing::TestWithParam<BlockCode> {
 protected:
  Values decoded(const CodecBlocks& blocks) {
    Values values(blocks.values.size(), 99.0f);
    backend_.sum_blocks(stream_, blocks.sum(values));
    return values;
  }

  Backend& backend_ = backend_for(Device{});
  Stream stream_{Device{}, StreamUse::compute};
};

INSTANTIATE_TEST_SUITE_P(Codes, CodecKernels, testing::ValuesIn(kBlockCodes), [](const auto& type) {
  return std::string(type.param == BlockCode::int8 ? "int8" : "sign");
});

TEST_P(CodecKernels, SentPlusResidualEqualsTheInput) {
  for (const std::int64_t count : kBlockCounts) {
    CodecBlocks blocks(GetParam(), count, "values");
    backend_.encode_blocks(stream_, blocks.encode());
    const Values sent = decoded(blocks);
    for (std::size_t first = 0; first < sent.size(); first += kBlockElements) {
      float largest = 0;  // the largest of the values that a rotation mixes
      for (std::size_t i = first; i < first + kBlockElements; ++i)
        largest = std::max({largest, std::abs(blocks.fed(i)), std::abs(sent[i])});
      for (std::size_t i = first; i < first + kBlockElements; ++i) {
        const float scale =
            GetParam() == BlockCode::sign ? largest : std::abs(blocks.fed(i)) + std::abs(sent[i]);
        ASSERT_NEAR(sent[i] + blocks.loss_scale * blocks.left[i], blocks.fed(i), 4e-7f * scale) << i;
      }
    }
  }
}

// Errors of a block: int8 differs by half a step at most. For normally distributed values a sign with scale
// pi / 2 times the mean magnitude leaves pi / 2 - 1 of the sum of squares.
TEST_P(CodecKernels, ErrorsAreBounded) {
  CodecBlocks blocks(GetParam(), 40, "values");
  backend_.encode_blocks(stream_, blocks.encode());
  const Values sent = decoded(blocks);
  for (std::size_t first = 0; first < sent.size(); first += kBlockElements) {
    double largest = 0, squares = 0, errors = 0, worst = 0;
    for (std::size_t i = first; i < first + kBlockElements; ++i) {
      const double fed = static_cast<double>(blocks.fed(i));
      const double error = std::abs(static_cast<double>(sent[i]) - fed);
      largest = std::max(largest, std::abs(fed));
      squares += fed * fed;
      errors += error * error;
      worst = std::max(worst, error);
    }
    if (GetParam() == BlockCode::int8) {
      EXPECT_LE(worst, largest / 254 * 1.0001);
    } else {
      EXPECT_NEAR(errors, 0.5708 * squares, 0.1 * squares);
    }
  }
}

TEST_P(CodecKernels, WithoutAResidualOnlyTheGradientIsSent) {
  CodecBlocks blocks(GetParam(), 5, "values");
  BlockEncode encode = blocks.encode();
  encode.residual = nullptr;
  encode.left = nullptr;
  backend_.encode_blocks(stream_, encode);
  const std::vector<std::byte> records = blocks.records;
  EXPECT_EQ(blocks.left, Values(blocks.left.size(), 77.0f));
  std::ranges::fill(blocks.residual, 0.0f);
  backend_.encode_blocks(stream_, blocks.encode());
  EXPECT_EQ(blocks.records, records);
}

TEST_P(CodecKernels, SumsRanksInTheirOrder) {
  constexpr std::int64_t kBlocks = 35, kParts = 3;
  std::vector<std::byte> records;
  Values expected;
  for (const char* purpose : {"rank 0", "rank 1", "rank 2"}) {
    CodecBlocks blocks(GetParam(), kBlocks, purpose);
    backend_.encode_blocks(stream_, blocks.encode());
    records.insert(records.end(), blocks.records.begin(), blocks.records.end());
    const Values sent = decoded(blocks);
    if (expected.empty()) {
      expected = sent;
    } else {
      for (std::size_t i = 0; i < sent.size(); ++i) expected[i] += sent[i];
    }
  }
  Values sum(expected.size());
  backend_.sum_blocks(stream_, {.code = GetParam(),
                                .blocks = kBlocks,
                                .parts = kParts,
                                .records = records.data(),
                                .values = sum.data()});
  // Signs are added before the sum is rotated back, so the rounding differs.
  const float rounding = GetParam() == BlockCode::sign ? 4e-6f : 0;
  for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], expected[i], rounding) << i;
}

TEST_P(CodecKernels, ANonFiniteBlockStaysNonFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -INFINITY}) {
    for (const bool in_residual : {false, true}) {
      CodecBlocks blocks(GetParam(), 3, "values");
      (in_residual ? blocks.residual : blocks.values)[kBlockElements + 200] = bad;
      backend_.encode_blocks(stream_, blocks.encode());
      const Values sent = decoded(blocks);
      for (std::size_t i = 0; i < sent.size(); ++i)
        ASSERT_EQ(std::isfinite(sent[i]), i / kBlockElements != 1) << i << " with " << bad;
    }
  }
}

// A NaN in the padding of a gradient would be sent again in the next step.
TEST_P(CodecKernels, PaddingOfANonFiniteBlockIsZero) {
  CodecBlocks blocks(GetParam(), 3, "values");
  blocks.values[kBlockElements + 200] = std::numeric_limits<float>::quiet_NaN();
  blocks.real[11] = 0x00ff00ffu;  // of block 1
  BlockEncode encode = blocks.encode();
  encode.real = blocks.real.data();
  backend_.encode_blocks(stream_, encode);
  for (const std::int64_t parts : {1, 2}) {
    std::vector<std::byte> records;
    for (std::int64_t part = 0; part < parts; ++part)
      records.insert(records.end(), blocks.records.begin(), blocks.records.end());
    Values values(blocks.values.size(), 99.0f);
    BlockSum sum = blocks.sum(values);
    sum.parts = parts;
    sum.records = records.data();
    sum.real = blocks.real.data();
    backend_.sum_blocks(stream_, sum);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (((blocks.real[i / 32] >> (i % 32)) & 1u) != 0) {
        ASSERT_EQ(std::isfinite(values[i]), i / kBlockElements != 1) << i << " of " << parts << " parts";
      } else {
        ASSERT_EQ(values[i], 0) << i << " of " << parts << " parts";
      }
    }
  }
}

TEST_P(CodecKernels, ZerosAreSentAsZeros) {
  CodecBlocks blocks(GetParam(), 2, "values");
  std::ranges::fill(blocks.values, 0.0f);
  std::ranges::fill(blocks.residual, 0.0f);
  blocks.values[3] = 1e-38f;  // too small for an inverse: int8 keeps it in the residual
  backend_.encode_blocks(stream_, blocks.encode());
  const Values sent = decoded(blocks);
  for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_LE(std::abs(sent[i]), 1.001f * kSignGain * 1e-38f);
  EXPECT_NEAR(sent[3] + 8 * blocks.left[3], 1e-38f, 1e-43f);
}

TEST_P(CodecKernels, HasTheSameResultsOnAWorkerStream) {
  Stream worker(Device{}, StreamUse::communication);
  CodecBlocks blocks(GetParam(), 70, "values"), there(GetParam(), 70, "values");
  backend_.encode_blocks(stream_, blocks.encode());
  Values values(there.values.size());
  backend_.encode_blocks(worker, there.encode());
  backend_.sum_blocks(worker, there.sum(values));
  worker.synchronize();
  EXPECT_EQ(there.records, blocks.records);
  EXPECT_EQ(there.left, blocks.left);
  EXPECT_EQ(values, decoded(blocks));
}

TEST(SignKernel, ExcludesPadding) {
  Backend& backend = backend_for(Device{});
  Stream stream(Device{}, StreamUse::compute);
  CodecBlocks blocks(BlockCode::sign, 4, "values");
  blocks.real[3] = 0x00ff00ffu;  // of block 0
  for (std::size_t word = 8; word < 16; ++word) blocks.real[word] = 0;
  const auto is_real = [&](std::size_t i) { return ((blocks.real[i / 32] >> (i % 32)) & 1u) != 0; };
  ASSERT_FALSE(is_real(104));
  blocks.values[104] = 1e30f;  // padding may contain any value
  BlockEncode encode = blocks.encode();
  encode.real = blocks.real.data();
  backend.encode_blocks(stream, encode);
  Values sent(blocks.values.size());
  BlockSum sum = blocks.sum(sent);
  sum.real = blocks.real.data();
  backend.sum_blocks(stream, sum);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (is_real(i)) {
      ASSERT_NEAR(sent[i] + blocks.loss_scale * blocks.left[i], blocks.fed(i), 1e-5) << i;
    } else {
      ASSERT_EQ(sent[i], 0) << i;
      ASSERT_EQ(blocks.left[i], 0) << i;
    }
  }
}

// The worst block without a rotation: a bit for each value would carry almost no information about the large
// one.
TEST(SignKernel, ALargeValueIsSpreadOverTheBlock) {
  Backend& backend = backend_for(Device{});
  Stream stream(Device{}, StreamUse::compute);
  for (const std::size_t place : {0, 7, 100, 255}) {
    CodecBlocks blocks(BlockCode::sign, 1, "values");
    std::ranges::fill(blocks.values, 0.0f);
    std::ranges::fill(blocks.residual, 0.0f);
    blocks.values[place] = -3;
    backend.encode_blocks(stream, blocks.encode());
    Values sent(blocks.values.size());
    backend.sum_blocks(stream, blocks.sum(sent));
    for (std::size_t i = 0; i < sent.size(); ++i)
      ASSERT_NEAR(sent[i], i == place ? -3 * kSignGain : 0, 1e-5) << i << " of " << place;
  }
}

// The gradient differs from step to step. The scale with the smallest error would send 2 / pi of it on
// average.
TEST(SignKernel, IsUnbiasedOnAverage) {
  constexpr int kSteps = 2000;
  Backend& backend = backend_for(Device{});
  Stream stream(Device{}, StreamUse::compute);
  const Values signal = random_values(kBlockElements, "signal");
  std::vector<double> mean(kBlockElements);
  double squares = 0, along = 0;
  for (int step = 0; step < kSteps; ++step) {
    CodecBlocks blocks(BlockCode::sign, 1, fmt::format("noise {}", step).c_str());
    for (std::size_t i = 0; i < signal.size(); ++i) blocks.values[i] += 0.5f * signal[i];
    BlockEncode encode = blocks.encode();
    encode.residual = nullptr;
    encode.left = nullptr;
    backend.encode_blocks(stream, encode);
    Values sent(signal.size());
    backend.sum_blocks(stream, blocks.sum(sent));
    for (std::size_t i = 0; i < signal.size(); ++i) mean[i] += static_cast<double>(sent[i]) / kSteps;
  }
  for (std::size_t i = 0; i < signal.size(); ++i) {
    along += mean[i] * static_cast<double>(signal[i]);
    squares += static_cast<double>(signal[i]) * static_cast<double>(signal[i]);
  }
  EXPECT_NEAR(along / squares, 0.5, 0.5 * 0.1);
}

TEST(Int8Kernel, StochasticRoundingIsUnbiased) {
  constexpr int kSteps = 4000;
  Backend& backend = backend_for(Device{});
  Stream stream(Device{}, StreamUse::compute);
  CodecBlocks blocks(BlockCode::int8, 2, "values");
  blocks.values[5] = 1000;  // the other values of this block are less than a step
  for (std::size_t i = kBlockElements; i < blocks.values.size(); ++i)
    blocks.values[i] = i % 2 == 0 ? 1.0f : -1.0f;
  std::vector<double> mean(blocks.values.size());
  const auto step_of = [](std::size_t i) { return (i < kBlockElements ? 1000.0 : 1.0) / 127; };
  StepDigits step;
  Values sent(blocks.values.size());
  for (; step.value() < kSteps; step.increase()) {
    BlockEncode encode = blocks.encode();
    encode.residual = nullptr;
    encode.left = nullptr;
    encode.key = key_for(7, "test");
    encode.step = &step;
    backend.encode_blocks(stream, encode);
    backend.sum_blocks(stream, blocks.sum(sent));
    for (std::size_t i = 0; i < sent.size(); ++i) {
      ASSERT_LE(std::abs(sent[i] - blocks.values[i]), 1.0001 * step_of(i)) << i;
      mean[i] += static_cast<double>(sent[i]) / kSteps;
    }
  }
  // Five standard deviations of a mean of values with an error of up to half a step.
  for (std::size_t i = 0; i < mean.size(); ++i)
    EXPECT_NEAR(mean[i], blocks.values[i], 5 * step_of(i) / 2 / std::sqrt(kSteps)) << i;
}

TEST(KeepIfFinite, CountsBeyondTheIntegersOfFp32) {
  Backend& backend = backend_for(Device{});
  Stream stream(Device{}, StreamUse::compute);
  const std::int32_t finite = 1;
  for (const std::int64_t begin : {(std::int64_t{1} << 24) - 1, (std::int64_t{1} << 31) - 1}) {
    StepDigits steps = StepDigits::of(begin);
    for (std::int64_t step = 1; step <= 3; ++step) {
      backend.keep_if_finite(stream, {.finite = &finite, .steps = &steps});
      EXPECT_EQ(steps.value(), begin + step);
    }
  }
}

TEST(KeepIfFinite, CopiesAndCountsOnlyIfFinite) {
  Backend& backend = backend_for(Device{});
  Stream stream(Device{}, StreamUse::compute);
  for (const std::int64_t count : {2, 40'000}) {  // several threads copy the second
    Values from(static_cast<std::size_t>(count) + 1), to(from.size(), -1.0f);
    std::iota(from.begin(), from.end(), 1.0f);
    StepDigits steps{.low = 4};
    for (const std::int32_t finite : {0, 1}) {
      backend.keep_if_finite(
          stream, {.finite = &finite, .count = count, .from = from.data(), .to = to.data(), .steps = &steps});
      Values expected(from.size(), -1.0f);
      if (finite != 0) std::copy_n(from.begin(), count, expected.begin());
      EXPECT_EQ(to, expected);
      EXPECT_EQ(steps.value(), finite != 0 ? 5 : 4);
    }
  }
}

}  // namespace
}  // namespace lockstep
