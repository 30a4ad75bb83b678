// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of codecs that send a few bits per gradient: a block of 256 fp32 values becomes a record of
// one scale and a few bits per value, and the records of several ranks are decoded into a sum. The encoding
// error is kept as the residual and added to the next step's values ("error feedback": Seide et al., "1-Bit
// Stochastic Gradient Descent", 2014; Karimireddy et al., "Error Feedback Fixes SignSGD", 2019).
//
//   int8   scale = largest magnitude / 127; value / scale, rounded to the nearest or at random   260 bytes
//   sign   the block is rotated; scale = pi / 2 times the mean magnitude; one bit                36 bytes
//
// A gradient has few large numbers among many small ones, which a single scale represents poorly. After a
// rotation that mixes all 256 they are close to normally distributed, and one bit and a scale keep 2 / pi of
// their squared norm (Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", 2021). The scale with
// the smallest error is the mean magnitude. The scale used here is larger, so that the decoded block equals
// the block on average instead of 2 / pi of it. Error feedback would also correct this factor, but only in
// later steps, and with momentum late gradients make steps unstable.
//
// A block with a value that is not finite has a scale that is not finite. Its decoded values are not finite
// either, except padding (BlockSum::real).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/random.h"
#include "core/tensor/dtype.h"

namespace lockstep {

enum class BlockCode { int8, sign };

// A step count in device memory, exact up to 2^48. An exchange's state is saved as fp32, which holds every
// integer up to 2^24, so the count is two such numbers.
struct StepDigits {
  static constexpr std::int64_t kBase = std::int64_t{1} << 24;
  float low = 0;   // less than kBase
  float high = 0;  // multiplied by kBase

  static StepDigits of(std::int64_t value) {
    return {.low = static_cast<float>(value % kBase), .high = static_cast<float>(value / kBase)};
  }
  LOCKSTEP_HOST_DEVICE std::int64_t value() const {
    return static_cast<std::int64_t>(high) * kBase + static_cast<std::int64_t>(low);
  }
  LOCKSTEP_HOST_DEVICE void increase() {
    low += 1;
    if (low < static_cast<float>(kBase)) return;
    low = 0;
    high += 1;
  }
};

inline constexpr std::int64_t kBlockElements = 256;
// BlockCode::sign: the scale divided by the mean magnitude of the rotated block.
inline constexpr float kSignGain = 1.57079633f;

// A record is a scale (float), followed by one byte per element (int8) or one bit per element in 32-bit words
// (sign).
constexpr std::int64_t record_bytes(BlockCode code) {
  return static_cast<std::int64_t>(sizeof(float)) +
         (code == BlockCode::int8 ? kBlockElements : kBlockElements / 8);
}

// Encodes values + residual into records and writes the encoding error to `left`. Values are multiplied by
// *loss_scale, residuals are not. Memory is aligned to 4 bytes.
struct BlockEncode {
  BlockCode code = BlockCode::int8;
  std::int64_t blocks = 0;
  const float* values = nullptr;
  const float* residual = nullptr;    // null: no residual, and the error is not kept
  float* left = nullptr;              // set if residual is; different memory
  const float* loss_scale = nullptr;  // null: 1
  // One bit per element, 8 words per block; elements whose bit is 0 are padding. null: no padding. sign
  // neither sends nor keeps padding. int8 does not read the bits: it sends zeros as zeros.
  const std::uint32_t* real = nullptr;
  std::byte* records = nullptr;
  // int8, if step is not null: stochastic rounding with random numbers keyed by key, step, purpose and
  // element.
  PhiloxKey key = {};
  const StepDigits* step = nullptr;
  std::uint32_t purpose = 0;
};

// values = the sum of the decoded records of `parts` ranks, added in rank order. records holds all blocks of
// one rank, then those of the next. (A single record of signs is rotated back as integers, exactly, and then
// multiplied by its scale.)
struct BlockSum {
  BlockCode code = BlockCode::int8;
  std::int64_t blocks = 0;
  std::int64_t parts = 1;
  const std::byte* records = nullptr;
  const std::uint32_t* real = nullptr;  // see BlockEncode; padding becomes 0, whatever the records hold
  float* values = nullptr;
};

// If *finite is not 0, or finite is null: copies from to to and increases *steps (null: not counted).
// Otherwise does nothing.
struct Keep {
  const std::int32_t* finite = nullptr;
  std::int64_t count = 0;
  const float* from = nullptr;
  float* to = nullptr;
  StepDigits* steps = nullptr;
};

}  // namespace lockstep
