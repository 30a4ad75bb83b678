// SPDX-License-Identifier: Apache-2.0
//
// The element types of activations on the CPU, float, Half and BFloat16: stored as such, computed with as
// fp32. A value of each converts to and from float by static_cast.
#pragma once

#include <type_traits>

#include "core/dtype.h"
#include "core/error.h"

namespace lockstep {

// function(std::type_identity<T>) for the T of a floating-point type.
template <typename F>
void with_element(DType type, F&& function) {
  CHECK(type == DType::f32 || type == DType::f16 || type == DType::bf16, "a kernel for elements of type {}",
        name_of(type));
  if (type == DType::f32) return function(std::type_identity<float>());
  if (type == DType::f16) return function(std::type_identity<Half>());
  return function(std::type_identity<BFloat16>());
}

}  // namespace lockstep
