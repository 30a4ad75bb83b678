// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of codecs that send a few bits for each gradient: blocks of 256 fp32 values become records
// of a scale and so many bits for each, and records of several ranks become a sum. What a record does not
// tell is kept, as the residual, and added to the next step's values ("error feedback": Seide et al., "1-Bit
// Stochastic Gradient Descent", 2014; Karimireddy et al., "Error Feedback Fixes SignSGD", 2019).
//
//   int8   scale = largest magnitude / 127; value / scale, rounded to the nearest or at random   260 bytes
//   sign   the block is rotated; scale = pi / 2 times the mean magnitude; one bit                36 bytes
//
// A gradient has few large numbers among many small ones, of which one scale for all tells little. Behind a
// rotation that mixes all 256 they are spread like a normal distribution, of whose squares one bit and a
// scale keep 2 / pi (Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", 2021). The scale is not
// that with the smallest error, which is the mean magnitude, but larger, so that what is sent is on average
// the block itself and not 2 / pi of it. Error feedback would make up for the rest, but late, and momentum
// makes steps from late gradients unstable.
//
// A block with something that is not finite has a scale that is not finite, and so is all that comes of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/random.h"

namespace lockstep {

enum class BlockCode { int8, sign };

// A number of steps in memory of a device, exact up to 2^48. What an exchange remembers is saved as fp32,
// which holds every whole number up to 2^24: a count is two of them.
struct StepDigits {
  static constexpr std::int64_t kBase = std::int64_t{1} << 24;
  float low = 0;   // below kBase
  float high = 0;  // times kBase

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
// Of sign: its scale, in mean magnitudes of the rotated block.
inline constexpr float kSignGain = 1.57079633f;

// A scale (float), then bytes, or bits in words of 32, element by element.
constexpr std::int64_t record_bytes(BlockCode code) {
  return static_cast<std::int64_t>(sizeof(float)) +
         (code == BlockCode::int8 ? kBlockElements : kBlockElements / 8);
}

// records = what is sent of values + residual, and what that leaves. Values come multiplied by *loss_scale,
// residuals do not. Memory is aligned to 4 bytes.
struct BlockEncode {
  BlockCode code = BlockCode::int8;
  std::int64_t blocks = 0;
  const float* values = nullptr;
  const float* residual = nullptr;    // null: nothing was left, and what is left now is not kept
  float* left = nullptr;              // with residual; another memory
  const float* loss_scale = nullptr;  // null: 1
  // sign: a bit for each element, 8 words for each block; those that are 0 are no gradients, neither sent nor
  // kept. null: all are. int8 sends zeros as zeros by itself.
  const std::uint32_t* real = nullptr;
  std::byte* records = nullptr;
  // int8, where step is not null: rounded at random, by numbers of the key for this step, purpose and
  // element.
  PhiloxKey key = {};
  const StepDigits* step = nullptr;
  std::uint32_t purpose = 0;
};

// values = the sum of what `parts` ranks' records tell, added in their order: those of one rank for all
// blocks, then the next rank's. (Of one record of signs they are rotated back as whole numbers, exactly, and
// then multiplied by its scale.)
struct BlockSum {
  BlockCode code = BlockCode::int8;
  std::int64_t blocks = 0;
  std::int64_t parts = 1;
  const std::byte* records = nullptr;
  const std::uint32_t* real = nullptr;  // see BlockEncode; others become 0
  float* values = nullptr;
};

// Where *finite is not 0: to = from, and *steps is increased (null: not counted). Else nothing.
struct Keep {
  const std::int32_t* finite = nullptr;
  std::int64_t count = 0;
  const float* from = nullptr;
  float* to = nullptr;
  StepDigits* steps = nullptr;
};

}  // namespace lockstep
