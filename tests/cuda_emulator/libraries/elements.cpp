// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/elements.h"

#include <bit>
#include <cstring>

#include "core/tensor/dtype.h"

namespace lockstep::emulator {
namespace {

template <typename T>
void widen(const void* elements, std::int64_t count, float* values) {
  const auto* from = static_cast<const T*>(elements);
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(from[i]);
}

template <typename T>
void narrow(const float* values, std::int64_t count, void* elements) {
  auto* to = static_cast<T*>(elements);
  for (std::int64_t i = 0; i < count; ++i) to[i] = T(values[i]);
}

template <typename T>
void round_through(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(T(values[i]));
}

}  // namespace

void to_floats(const void* elements, Element type, std::int64_t count, float* values) {
  if (type == Element::f16) return widen<Half>(elements, count, values);
  if (type == Element::bf16) return widen<BFloat16>(elements, count, values);
  std::memcpy(values, elements, static_cast<std::size_t>(count) * sizeof(float));
}

void from_floats(const float* values, std::int64_t count, Element type, void* elements) {
  if (type == Element::f16) return narrow<Half>(values, count, elements);
  if (type == Element::bf16) return narrow<BFloat16>(values, count, elements);
  std::memcpy(elements, values, static_cast<std::size_t>(count) * sizeof(float));
}

void round_to_tf32(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t word = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t rounded = (word + 0xfffu + (word >> 13 & 1u)) & ~0x1fffu;
    const bool finite = (word & 0x7f800000u) != 0x7f800000u;
    values[i] = std::bit_cast<float>(finite ? rounded : word);
  }
}

void round_to(Element type, float* values, std::int64_t count) {
  if (type == Element::f16) round_through<Half>(values, count);
  if (type == Element::bf16) round_through<BFloat16>(values, count);
}

void add(const float* values, std::int64_t count, float* sum) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += values[i];
}

void blend(float alpha, float beta, const float* before, std::int64_t count, float* result) {
  if (beta == 0) {
    if (alpha == 1) return;
    for (std::int64_t i = 0; i < count; ++i) result[i] *= alpha;
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) result[i] = alpha * result[i] + beta * before[i];
}

}  // namespace lockstep::emulator
