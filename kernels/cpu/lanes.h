// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 16, 8, 4 and 1 floats, with loads and stores of tensor elements: halves are converted to fp32 in
// registers and rounded to nearest even when stored, with the same bits as core/tensor/dtype.h. All is
// inlined into functions that are compiled for one or several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/tensor/dtype.h"

// Inlined into each version of a function compiled for several instruction sets.
#define LOCKSTEP_LANES_INLINE inline __attribute__((always_inline))

namespace lockstep {

// Vector types of W elements. (g++ 12 ignores a vector_size that depends on a template parameter.)
template <int W>
struct Lanes;
template <>
struct Lanes<16> {
  using Float = float __attribute__((vector_size(64)));
  using Word = std::uint32_t __attribute__((vector_size(64)));
  using Int = std::int32_t __attribute__((vector_size(64)));
  using Short = std::uint16_t __attribute__((vector_size(32)));
  using Byte = std::uint8_t __attribute__((vector_size(16)));
};
template <>
struct Lanes<8> {
  using Float = float __attribute__((vector_size(32)));
  using Word = std::uint32_t __attribute__((vector_size(32)));
  using Int = std::int32_t __attribute__((vector_size(32)));
  using Short = std::uint16_t __attribute__((vector_size(16)));
  using Byte = std::uint8_t __attribute__((vector_size(8)));
};
template <>
struct Lanes<4> {
  using Float = float __attribute__((vector_size(16)));
  using Word = std::uint32_t __attribute__((vector_size(16)));
  using Int = std::int32_t __attribute__((vector_size(16)));
  using Short = std::uint16_t __attribute__((vector_size(8)));
  using Byte = std::uint8_t __attribute__((vector_size(4)));
};
template <>
struct Lanes<1> {
  using Float = float;
  using Word = std::uint32_t;
  using Int = std::int32_t;
  using Short = std::uint16_t;
  using Byte = std::uint8_t;
};
static_assert(sizeof(Lanes<16>::Float) == 64 && sizeof(Lanes<8>::Float) == 32);

// The Lanes whose Float is V.
template <typename V>
using LanesOf = Lanes<static_cast<int>(sizeof(V) / sizeof(float))>;

// Converts element by element.
template <typename To, typename From>
LOCKSTEP_LANES_INLINE To converted(const From& from) {
  if constexpr (std::is_arithmetic_v<From>) {
    return static_cast<To>(from);
  } else {
    return __builtin_convertvector(from, To);
  }
}

// Bytes to words and back (numbers below 256), for L = Lanes<W>. By way of shorts, because GCC 12 converts
// one by one between bytes and words.
template <typename L>
LOCKSTEP_LANES_INLINE typename L::Word words_of_bytes(const typename L::Byte& bytes) {
  return converted<typename L::Word>(converted<typename L::Short>(bytes));
}
template <typename L>
LOCKSTEP_LANES_INLINE typename L::Byte bytes_of_words(const typename L::Word& words) {
  return converted<typename L::Byte>(converted<typename L::Short>(words));
}

// Reinterprets the bits. (Not std::bit_cast: it might not be inlined, and each instruction set passes vectors
// differently.)
template <typename To, typename From>
LOCKSTEP_LANES_INLINE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

namespace detail {

template <typename V, typename Short>
LOCKSTEP_LANES_INLINE V from_bf16(const Short& bits) {
  using Word = typename LanesOf<V>::Word;
  return same_bits<V>(converted<Word>(bits) << 16);
}

template <typename V>
LOCKSTEP_LANES_INLINE auto to_bf16(const V& value) {
  using Word = typename LanesOf<V>::Word;
  const Word word = same_bits<Word>(value);
  const Word rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const Word quiet = (word >> 16) | 0x40u;
  const Word result = (word & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  return converted<typename LanesOf<V>::Short>(result);
}

template <typename V, typename Short>
LOCKSTEP_LANES_INLINE V from_f16(const Short& bits) {
  using Word = typename LanesOf<V>::Word;
  const Word half = converted<Word>(bits);
  const Word magnitude = (half & 0x7fffu) << 13;
  const Word normal = magnitude + 0x38000000u;  // fp32 exponents are larger by 112
  const Word special = magnitude + 0x70000000u;
  // 2^-14 * (1 + mantissa) - 2^-14: exact, and no intermediate value is subnormal.
  const Word subnormal = same_bits<Word>(same_bits<V>(magnitude + 0x38800000u) - 0x1p-14f);
  const Word finite = magnitude < 0x00800000u ? subnormal : normal;
  const Word result = magnitude >= 0x0f800000u ? special : finite;
  return same_bits<V>(result | ((half & 0x8000u) << 16));
}

template <typename V>
LOCKSTEP_LANES_INLINE auto to_f16(const V& value) {
  using Word = typename LanesOf<V>::Word;
  const Word word = same_bits<Word>(value);
  const Word magnitude = word & 0x7fffffffu;
  // Adding 0.5 places the rounding at the weight of the last subnormal bit (2^-24).
  const Word subnormal = same_bits<Word>(same_bits<V>(magnitude) + 0.5f) - 0x3f000000u;
  const Word normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const Word finite = magnitude < 0x38800000u ? subnormal : normal;
  const Word nan = Word{} + 0x7e00u, infinity = Word{} + 0x7c00u;
  const Word special = magnitude > 0x7f800000u ? nan : infinity;
  const Word result = magnitude >= 0x477ff000u ? special : finite;
  return converted<typename LanesOf<V>::Short>(result | ((word >> 16) & 0x8000u));
}

template <typename V, typename T>
LOCKSTEP_LANES_INLINE V bits_at(const T* data) {
  V value;
  std::memcpy(&value, data, sizeof(V));
  return value;
}

}  // namespace detail

// Loads elements from any address: halves are converted to fp32, other types are unchanged.
template <typename V, typename T>
LOCKSTEP_LANES_INLINE V load(const T* data) {
  if constexpr (std::is_same_v<T, Half>) {
    return detail::from_f16<V>(detail::bits_at<typename LanesOf<V>::Short>(data));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return detail::from_bf16<V>(detail::bits_at<typename LanesOf<V>::Short>(data));
  } else {
    return detail::bits_at<V>(data);
  }
}

template <typename V, typename T>
LOCKSTEP_LANES_INLINE void store(T* data, const V& value) {
  if constexpr (std::is_same_v<T, Half>) {
    const auto bits = detail::to_f16(value);
    std::memcpy(static_cast<void*>(data), &bits, sizeof(bits));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const auto bits = detail::to_bf16(value);
    std::memcpy(static_cast<void*>(data), &bits, sizeof(bits));
  } else {
    std::memcpy(data, &value, sizeof(V));
  }
}

}  // namespace lockstep
