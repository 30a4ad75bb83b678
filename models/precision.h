// SPDX-License-Identifier: Apache-2.0
//
// Precision: the arithmetic of a network. Master weights, optimizer state, batch norm's parameters and
// statistics, and the loss are fp32 in all precisions; see storage_type for the rest.
#pragma once

#include <span>
#include <string_view>

#include "core/tensor/dtype.h"

namespace lockstep {

enum class Precision {
  fp32,
  tf32,  // fp32 in memory; a GPU rounds operands of convolutions and linear layers to 10 bits of mantissa
  bf16,
  fp16,       // needs a loss scale
  automatic,  // not chosen yet: no network can be planned with it
};

inline constexpr std::string_view kPrecisionWords[] = {"fp32", "tf32", "bf16", "fp16", "auto"};
constexpr std::span<const std::string_view> words_of(Precision) { return kPrecisionWords; }

// The type of activations, of weights as layers read them, and of the gradients of both.
constexpr DType storage_type(Precision precision) {
  return precision == Precision::fp16 ? DType::f16 : precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace lockstep
