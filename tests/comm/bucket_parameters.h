// SPDX-License-Identifier: Apache-2.0
//
// Made-up parameters for tests of buckets.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "core/tensor/buffer.h"
#include "core/tensor/parameter.h"

namespace lockstep {

inline constexpr std::int64_t kLine = kAlignment / sizeof(float);  // offsets of fp32 are multiples of it

// Parameters p0, p1, ... with these element counts, laid out one after the other. The first `half` of them
// have gradients of half_type.
inline std::vector<Parameter> parameters_of(std::span<const std::int64_t> sizes, std::size_t half = 0,
                                            DType half_type = DType::f16) {
  std::vector<Parameter> parameters;
  std::int64_t offset = 0;
  for (const std::int64_t size : sizes) {
    const bool is_half = parameters.size() < half;
    const std::int64_t line = is_half ? 2 * kLine : kLine;
    parameters.push_back({.name = fmt::format("p{}", parameters.size()),
                          .layout = Layout({size}, DType::f32),
                          .gradient_type = is_half ? half_type : DType::f32,
                          .offset = offset});
    offset += (size + line - 1) / line * line;
  }
  return parameters;
}
inline std::vector<Parameter> parameters_of(std::initializer_list<std::int64_t> sizes, std::size_t half = 0) {
  return parameters_of(std::span(sizes.begin(), sizes.size()), half);
}

}  // namespace lockstep
