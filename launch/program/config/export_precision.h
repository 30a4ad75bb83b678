// SPDX-License-Identifier: Apache-2.0
//
// ExportPrecision: the type in which an export stores parameters. Running statistics are always fp32.
#pragma once

#include <span>
#include <string_view>

#include "core/tensor/dtype.h"

namespace lockstep {

enum class ExportPrecision { fp32, fp16, bf16 };
inline constexpr std::string_view kExportPrecisionWords[] = {"fp32", "fp16", "bf16"};
constexpr std::span<const std::string_view> words_of(ExportPrecision) { return kExportPrecisionWords; }

constexpr DType stored_type(ExportPrecision precision) {
  return precision == ExportPrecision::fp16   ? DType::f16
         : precision == ExportPrecision::bf16 ? DType::bf16
                                              : DType::f32;
}

}  // namespace lockstep
