// SPDX-License-Identifier: Apache-2.0
//
// Values and memory for tests of codec kernels on every backend.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/codec.h"
#include "tests/kernels/affine_reference.h"

namespace lockstep {

inline constexpr BlockCode kBlockCodes[] = {BlockCode::int8, BlockCode::sign};

// The input and output memory of one encode call.
struct CodecBlocks {
  CodecBlocks(BlockCode of, std::int64_t count, const char* purpose)
      : code(of),
        blocks(count),
        values(random_values(blocks * kBlockElements, purpose)),
        residual(random_values(blocks * kBlockElements, "residual")),
        left(values.size(), 77.0f),
        records(static_cast<std::size_t>(blocks * record_bytes(code))),
        real(static_cast<std::size_t>(blocks) * 8, 0xffffffffu) {
    for (std::size_t i = 0; i < values.size(); ++i) {  // blocks of different magnitudes
      const std::size_t block = i / kBlockElements;
      values[i] *= block % 3 == 1 ? 1e-3f : 1.0f;
      residual[i] *= block % 3 == 1 ? 1e-3f : 0.5f;
      if (block % 4 == 3) values[i] = residual[i] = 0;
    }
  }

  BlockEncode encode() {
    return {.code = code,
            .blocks = blocks,
            .values = values.data(),
            .residual = residual.data(),
            .left = left.data(),
            .loss_scale = &loss_scale,
            .records = records.data()};
  }
  BlockSum sum(Values& into) const {
    return {.code = code, .blocks = blocks, .records = records.data(), .values = into.data()};
  }
  float fed(std::size_t i) const { return values[i] + loss_scale * residual[i]; }

  BlockCode code;
  std::int64_t blocks;
  Values values;
  Values residual;
  Values left;
  std::vector<std::byte> records;
  std::vector<std::uint32_t> real;
  float loss_scale = 8;
};

}  // namespace lockstep
