// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/cuda_emulator/device_memory.h"
#include "tests/kernels/codec_blocks.h"

namespace lockstep {
namespace {

// Block counts around 8, the number of blocks per thread block.
constexpr std::int64_t kCounts[] = {1, 7, 8, 9, 21};

class CudaCodec : public testing::TestWithParam<BlockCode> {
 protected:
  // One number for each byte, because in_any_order() compares numbers.
  static Values bytes_at(const void* memory, std::size_t count) {
    const auto* first = static_cast<const std::uint8_t*>(memory);
    return {first, first + count};
  }

  Stream stream_{Device{}, StreamUse::compute};
  Backend& cpu_ = backend_for(Device{});
};

INSTANTIATE_TEST_SUITE_P(Codes, CudaCodec, testing::ValuesIn(kBlockCodes), [](const auto& type) {
  return std::string(type.param == BlockCode::int8 ? "int8" : "sign");
});

TEST_P(CudaCodec, RecordsAndResidualsEqualTheCpu) {
  const StepDigits step{.low = 3, .high = 1};
  for (const std::int64_t count : kCounts) {
    for (const bool at_random : {false, true}) {
      for (const bool feedback : {false, true}) {
        CodecBlocks blocks(GetParam(), count, "values");
        blocks.real[1] = 0x1234abcdu;
        const DeviceMemory values(blocks.values, DType::f32), residual(blocks.residual, DType::f32);
        const DeviceMemory real(blocks.real);
        DeviceMemory left(blocks.left.size() * sizeof(float)), records(blocks.records.size());
        BlockEncode encode = blocks.encode();
        encode.real = blocks.real.data();
        encode.key = key_for(1, "test");
        if (at_random) encode.step = &step;
        if (!feedback) encode.residual = encode.left = nullptr;
        cpu_.encode_blocks(stream_, encode);
        encode.values = static_cast<const float*>(values.data());
        encode.real = static_cast<const std::uint32_t*>(real.data());
        encode.records = static_cast<std::byte*>(records.data());
        if (feedback) encode.residual = static_cast<const float*>(residual.data());
        if (feedback) encode.left = static_cast<float*>(left.data());
        EXPECT_EQ(in_any_order([&] {
                    cuda_encode_blocks(stream_, encode);
                    return bytes_at(records.data(), blocks.records.size());
                  }),
                  bytes_at(blocks.records.data(), blocks.records.size()));
        if (!feedback) continue;
        EXPECT_EQ(left.values(DType::f32), blocks.left);
      }
    }
  }
}

// Block 1 is not finite: its values are NaN, except padding, which is zero.
TEST_P(CudaCodec, SumsEqualTheCpu) {
  constexpr std::int64_t kBlocks = 9, kParts = 3;
  const auto nan_as_number = [](Values sums) {  // NaN does not equal itself
    std::ranges::replace_if(
        sums, [](float sum) { return std::isnan(sum); }, 1e30f);
    return sums;
  };
  std::vector<std::byte> all;
  std::vector<std::uint32_t> real_bits;
  for (const char* purpose : {"rank 0", "rank 1", "rank 2"}) {
    CodecBlocks blocks(GetParam(), kBlocks, purpose);
    blocks.values[kBlockElements + 5] = std::numeric_limits<float>::quiet_NaN();
    cpu_.encode_blocks(stream_, blocks.encode());
    all.insert(all.end(), blocks.records.begin(), blocks.records.end());
    blocks.real[3] = blocks.real[11] = 0x0f0f1111u;
    real_bits = blocks.real;
  }
  Values expected(kBlocks * kBlockElements);
  BlockSum sum{.code = GetParam(),
               .blocks = kBlocks,
               .parts = kParts,
               .records = all.data(),
               .real = real_bits.data(),
               .values = expected.data()};
  cpu_.sum_blocks(stream_, sum);
  const DeviceMemory records(all), real(real_bits);
  DeviceMemory values(expected.size() * sizeof(float));
  sum.records = static_cast<const std::byte*>(records.data());
  sum.real = static_cast<const std::uint32_t*>(real.data());
  sum.values = static_cast<float*>(values.data());
  const Values actual = in_any_order([&] {
    values.spoil();
    cuda_sum_blocks(stream_, sum);
    return values.values(DType::f32);
  });
  EXPECT_EQ(nan_as_number(actual), nan_as_number(expected));
}

TEST(CudaKeepIfFinite, CopiesAndCountsOnlyIfFinite) {
  Stream stream(Device{}, StreamUse::compute);
  for (const std::int64_t count : {0, 1, 4, 1023, 5001}) {
    for (const std::int32_t finite : {0, 1}) {
      const Values from = random_values(count, "from"), before = random_values(count, "to");
      const DeviceMemory source(from, DType::f32), flag(std::vector<std::int32_t>{finite});
      DeviceMemory target(before, DType::f32), steps(Values{0x1p24f - 1, 2}, DType::f32);
      cuda_keep_if_finite(stream, {.finite = static_cast<const std::int32_t*>(flag.data()),
                                   .count = count,
                                   .from = static_cast<const float*>(source.data()),
                                   .to = static_cast<float*>(target.data()),
                                   .steps = static_cast<StepDigits*>(steps.data())});
      EXPECT_EQ(target.values(DType::f32), finite != 0 ? from : before);
      EXPECT_EQ(steps.values(DType::f32), finite != 0 ? (Values{0, 3}) : (Values{0x1p24f - 1, 2}));
    }
  }
}

}  // namespace
}  // namespace lockstep
