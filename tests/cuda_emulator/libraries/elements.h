// SPDX-License-Identifier: Apache-2.0
//
// Conversions between the element types of the emulated libraries' operands and the floats used for
// computing. All functions work on memory of a single thread and are compiled for speed, without sanitizers;
// operands.h reads and writes device memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::emulator {

enum class Element : std::uint8_t { f32, f16, bf16 };

constexpr std::size_t size_of(Element type) { return type == Element::f32 ? 4 : 2; }

void to_floats(const void* elements, Element type, std::int64_t count, float* values);
// Rounds to nearest, ties to even.
void from_floats(const float* values, std::int64_t count, Element type, void* elements);
// Rounds to the nearest number with 10 bits of mantissa, as tensor cores do with fp32 operands.
void round_to_tf32(float* values, std::int64_t count);
// Rounds to the nearest number of the type.
void round_to(Element type, float* values, std::int64_t count);

// sum[i] += values[i].
void add(const float* values, std::int64_t count, float* sum);
// result[i] = alpha * result[i] + beta * before[i]; before is not read when beta is 0.
void blend(float alpha, float beta, const float* before, std::int64_t count, float* result);

}  // namespace lockstep::emulator
