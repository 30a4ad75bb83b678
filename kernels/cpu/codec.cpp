// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/system/processors.h"
#include "kernels/codec_functors.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/sign_rotation.h"

namespace lockstep {
namespace {

using Wide = Lanes<16>::Float;
using Words = Lanes<16>::Word;
constexpr int kWide = 16;
constexpr std::int64_t kPieceBlocks = 32;

// The values of one block, in registers or the L1 cache.
struct alignas(64) BlockValues {
  float values[kBlockElements];
};

LOCKSTEP_INLINE float scale_at(const std::byte* record) {
  float scale;
  std::memcpy(&scale, record, sizeof(scale));
  return scale;
}

LOCKSTEP_INLINE void feed(const BlockEncode& a, std::int64_t first, const ErrorFeedback& feedback,
                          BlockValues& fed) {
  const float* values = a.values + first;
  if (a.residual == nullptr) {
    std::memcpy(fed.values, values, sizeof(fed.values));
    return;
  }
  const float* residual = a.residual + first;
#pragma omp simd
  for (int i = 0; i < kBlockElements; ++i) fed.values[i] = feedback.fed(values[i], residual[i]);
}

LOCKSTEP_INLINE void round_at_random(const BlockEncode& a, std::int64_t first, const Int8Block& block,
                                     const BlockValues& fed, std::uint8_t* bytes) {
  for (int i = 0; i < kBlockElements; i += 4) {
    const PhiloxCounter words = dither_words(first + i, *a.step, a.purpose, a.key);
    for (int k = 0; k < 4; ++k) {
      bytes[i + k] =
          static_cast<std::uint8_t>(block.rounded(fed.values[i + k], words[static_cast<std::size_t>(k)]));
    }
  }
}

LOCKSTEP_INLINE void encode_int8(const BlockEncode& a, std::int64_t first, const ErrorFeedback& feedback,
                                 std::byte* record) {
  BlockValues fed;
  feed(a, first, feedback, fed);
  std::int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < kBlockElements; ++i) {
    const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(fed.values[i]) & kMagnitudeBits);
    largest = largest > bits ? largest : bits;
  }
  const Int8Block block = Int8Block::of(static_cast<std::uint32_t>(largest));
  std::memcpy(record, &block.scale, sizeof(block.scale));
  auto* bytes = reinterpret_cast<std::uint8_t*>(record + sizeof(float));
  if (a.step != nullptr) {
    round_at_random(a, first, block, fed, bytes);
  } else {
#pragma omp simd
    for (int i = 0; i < kBlockElements; ++i)
      bytes[i] = static_cast<std::uint8_t>(block.rounded(fed.values[i]));
  }
  if (a.left == nullptr) return;
  float* left = a.left + first;
#pragma omp simd
  for (int i = 0; i < kBlockElements; ++i) {
    left[i] =
        feedback.left(fed.values[i], Int8Block::decoded(block.scale, static_cast<std::int8_t>(bytes[i])));
  }
}

// The `real` bits of a block; null if all of its elements are real, as in nearly every block.
LOCKSTEP_INLINE const std::uint32_t* words_of_padded(const std::uint32_t* real, std::int64_t first) {
  if (real == nullptr) return nullptr;
  const std::uint32_t* words = real + first / kBlockLanes;
  std::uint32_t all = ~std::uint32_t{0};
  for (int row = 0; row < kBlockRows; ++row) all &= words[row];
  return all == ~std::uint32_t{0} ? nullptr : words;
}

// Writes 1 or 0 for each element.
LOCKSTEP_INLINE void unpack_bits(const std::uint32_t* words, std::int32_t* flags) {
  for (int row = 0; row < kBlockRows; ++row) {
    const std::uint32_t word = words[row];
#pragma omp simd
    for (int lane = 0; lane < kBlockLanes; ++lane)
      flags[row * kBlockLanes + lane] = static_cast<std::int32_t>((word >> lane) & 1u);
  }
}

// Sums in the order of a warp's reduction tree, for the same bits as the GPU.
LOCKSTEP_INLINE float sum_of_magnitudes(const BlockValues& fed) {
  alignas(64) float lanes[kBlockLanes];
#pragma omp simd
  for (int lane = 0; lane < kBlockLanes; ++lane) lanes[lane] = __builtin_fabsf(fed.values[lane]);
  for (int row = 1; row < kBlockRows; ++row) {
    const float* values = fed.values + row * kBlockLanes;
#pragma omp simd
    for (int lane = 0; lane < kBlockLanes; ++lane) lanes[lane] += __builtin_fabsf(values[lane]);
  }
  for (int distance = kBlockLanes / 2; distance > 0; distance /= 2) {
#pragma omp simd
    for (int lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return lanes[0];
}

// Sets padding to zero. words: see words_of_padded.
LOCKSTEP_INLINE void leave_out_padding(const std::uint32_t* words, float* values) {
  if (words == nullptr) return;
  alignas(64) std::int32_t real[kBlockElements];
  unpack_bits(words, real);
#pragma omp simd
  for (int i = 0; i < kBlockElements; ++i) values[i] = real[i] != 0 ? values[i] : 0.0f;
}

LOCKSTEP_INLINE void encode_sign(const BlockEncode& a, std::int64_t first, const ErrorFeedback& feedback,
                                 std::byte* record) {
  BlockValues fed;
  feed(a, first, feedback, fed);
  const std::uint32_t* words = words_of_padded(a.real, first);
  leave_out_padding(words, fed.values);
  rotate(fed.values);
  const float scale = SignBlock::scale_of(sum_of_magnitudes(fed));
  std::memcpy(record, &scale, sizeof(scale));
  std::uint32_t bits[kBlockRows];
  for (int row = 0; row < kBlockRows; ++row) {
    const float* values = fed.values + row * kBlockLanes;
    std::uint32_t word = 0;
#pragma omp simd reduction(| : word)
    for (int lane = 0; lane < kBlockLanes; ++lane)
      word |= static_cast<std::uint32_t>(SignBlock::bit(values[lane])) << lane;
    bits[row] = word;
  }
  std::memcpy(record + sizeof(float), bits, sizeof(bits));
  if (a.left == nullptr) return;
#pragma omp simd
  for (int i = 0; i < kBlockElements; ++i) {
    const float sent = SignBlock::decoded(scale, SignBlock::bit(fed.values[i]));
    fed.values[i] = feedback.left(fed.values[i], sent);
  }
  rotate_back(fed.values);
  leave_out_padding(words, fed.values);
  std::memcpy(a.left + first, fed.values, sizeof(fed.values));
}

// sum += the record's values, or sum = them for the first record.
LOCKSTEP_INLINE void add_int8(const std::byte* record, bool first, float* sum) {
  const float scale = scale_at(record);
  const auto* bytes = reinterpret_cast<const std::int8_t*>(record + sizeof(float));
  if (first) {
#pragma omp simd
    for (int i = 0; i < kBlockElements; ++i) sum[i] = Int8Block::decoded(scale, bytes[i]);
    return;
  }
#pragma omp simd
  for (int i = 0; i < kBlockElements; ++i) sum[i] += Int8Block::decoded(scale, bytes[i]);
}

LOCKSTEP_INLINE void decode_sign(const std::byte* record, float* values) {
  std::uint16_t bits[kBlockElements / 16];
  std::memcpy(bits, record + sizeof(float), sizeof(bits));
  rotate_signs_back(bits, scale_at(record), values);
}

// sum += the record's values, still rotated, or sum = them for the first record.
LOCKSTEP_INLINE void add_sign(const std::byte* record, bool first, float* sum) {
  const float scale = scale_at(record);
  std::uint32_t bits[kBlockRows];
  std::memcpy(bits, record + sizeof(float), sizeof(bits));
  // Shifts each lane's bit to the sign bit of the scale.
  constexpr Words kToTheTop[] = {{31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16},
                                 {15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}};
  const Words magnitude = same_bits<Words>(Wide{} + scale);
  for (int row = 0; row < kBlockRows; ++row) {
    const Words word = Words{} + bits[row];
    for (const Words& shift : kToTheTop) {
      const Wide value = same_bits<Wide>(magnitude ^ ((word << shift) & 0x80000000u));
      store(sum, first ? value : load<Wide>(sum) + value);
      sum += kWide;
    }
  }
}

void encode_int8_blocks(const BlockEncode& a, std::int64_t begin, std::int64_t end) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    const ErrorFeedback feedback = ErrorFeedback::of(a.loss_scale);
    for (std::int64_t block = begin; block < end; ++block) {
      encode_int8(a, block * kBlockElements, feedback, a.records + block * record_bytes(BlockCode::int8));
    }
  });
}

void encode_sign_blocks(const BlockEncode& a, std::int64_t begin, std::int64_t end) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    const ErrorFeedback feedback = ErrorFeedback::of(a.loss_scale);
    for (std::int64_t block = begin; block < end; ++block) {
      encode_sign(a, block * kBlockElements, feedback, a.records + block * record_bytes(BlockCode::sign));
    }
  });
}

void sum_int8_blocks(const BlockSum& a, std::int64_t begin, std::int64_t end) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    for (std::int64_t block = begin; block < end; ++block) {
      float* values = a.values + block * kBlockElements;
      for (std::int64_t part = 0; part < a.parts; ++part) {
        const std::byte* record = a.records + (part * a.blocks + block) * record_bytes(BlockCode::int8);
        add_int8(record, part == 0, values);
      }
      leave_out_padding(words_of_padded(a.real, block * kBlockElements), values);
    }
  });
}

void sum_sign_blocks(const BlockSum& a, std::int64_t begin, std::int64_t end) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    for (std::int64_t block = begin; block < end; ++block) {
      const auto record = [&](std::int64_t part) {
        return a.records + (part * a.blocks + block) * record_bytes(BlockCode::sign);
      };
      BlockValues sum;
      if (a.parts == 1) {
        decode_sign(record(0), sum.values);
      } else {
        add_sign(record(0), true, sum.values);
        for (std::int64_t part = 1; part < a.parts; ++part) add_sign(record(part), false, sum.values);
        rotate_back(sum.values);
      }
      leave_out_padding(words_of_padded(a.real, block * kBlockElements), sum.values);
      std::memcpy(a.values + block * kBlockElements, sum.values, sizeof(sum.values));
    }
  });
}

// Calls body(begin, end) for pieces of kPieceBlocks blocks, in parallel.
template <typename Body>
void in_pieces(std::int64_t blocks, Body body) {
  deal((blocks + kPieceBlocks - 1) / kPieceBlocks,
       [=](std::int64_t piece) { body(piece * kPieceBlocks, std::min(blocks, (piece + 1) * kPieceBlocks)); });
}

}  // namespace

void CpuBackend::encode_blocks(Stream& stream, const BlockEncode& arguments) {
  in_order(stream, [a = arguments] {
    in_pieces(a.blocks, [&a](std::int64_t begin, std::int64_t end) {
      a.code == BlockCode::int8 ? encode_int8_blocks(a, begin, end) : encode_sign_blocks(a, begin, end);
    });
  });
}

void CpuBackend::sum_blocks(Stream& stream, const BlockSum& arguments) {
  in_order(stream, [a = arguments] {
    in_pieces(a.blocks, [&a](std::int64_t begin, std::int64_t end) {
      a.code == BlockCode::int8 ? sum_int8_blocks(a, begin, end) : sum_sign_blocks(a, begin, end);
    });
  });
}

void CpuBackend::keep_if_finite(Stream& stream, const Keep& arguments) {
  in_order(stream, [a = arguments] {
    if (a.finite != nullptr && *a.finite == 0) return;
    in_spans(a.count, [&a](std::int64_t begin, std::int64_t count) {
      std::copy_n(a.from + begin, count, a.to + begin);
    });
    if (a.steps != nullptr) a.steps->increase();
  });
}

}  // namespace lockstep
