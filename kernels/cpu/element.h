// SPDX-License-Identifier: Apache-2.0
//
// The element types of activations on the CPU: float, Half and BFloat16. Arithmetic is fp32. static_cast
// converts a single value to and from float; kernels/cpu/lanes.h converts vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/error.h"
#include "core/tensor/dtype.h"

namespace lockstep {

// Calls function(std::type_identity<T>) with the T of a floating-point type. Inlined, so that the called code
// is compiled for the caller's instruction set.
template <typename F>
__attribute__((always_inline)) inline void with_element(DType type, F&& function) {
  CHECK(type == DType::f32 || type == DType::f16 || type == DType::bf16,
        "the element type is {}, expected fp32, fp16 or bf16", name_of(type));
  if (type == DType::f32) return function(std::type_identity<float>());
  if (type == DType::f16) return function(std::type_identity<Half>());
  return function(std::type_identity<BFloat16>());
}

// The address of element `index` in memory of this type; null stays null.
inline const void* element_at(const void* data, DType type, std::int64_t index) {
  return data == nullptr
             ? nullptr
             : static_cast<const std::byte*>(data) + index * static_cast<std::int64_t>(size_of(type));
}
inline void* element_at(void* data, DType type, std::int64_t index) {
  return const_cast<void*>(element_at(static_cast<const void*>(data), type, index));
}

}  // namespace lockstep
