// SPDX-License-Identifier: Apache-2.0
//
// Precision: in what a network computes. Master weights, optimizer state, batch norm's parameters and
// statistics and the loss are fp32 in all of them; see storage_type for the rest.
#pragma once

#include <span>
#include <string_view>

#include "core/dtype.h"

namespace lockstep {

enum class Precision {
  fp32,
  tf32,  // fp32 in memory; a GPU rounds what convolutions and linear layers multiply to 10 bits of mantissa
  bf16,
  fp16,  // needs a loss scale
};

inline constexpr std::string_view kPrecisionWords[] = {"fp32", "tf32", "bf16", "fp16"};
constexpr std::span<const std::string_view> words_of(Precision) { return kPrecisionWords; }

// By its word. Throws ConfigError for anything else.
Precision parse_precision(std::string_view name);

// Of activations, of weights as layers read them, and of the gradients of both.
constexpr DType storage_type(Precision precision) {
  return precision == Precision::fp16 ? DType::f16 : precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace lockstep
