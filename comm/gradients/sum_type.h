// SPDX-License-Identifier: Apache-2.0
//
// The type in which 16-bit gradients are summed where each partial sum would be rounded: over the
// micro-batches of a rank (comm/gradients/running_sums.h), and over ranks by NCCL, which sends partial sums
// on (comm/exchanges/dense_sum.cpp). CPUs always add ranks in fp32.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/tensor/dtype.h"

namespace lockstep {

enum class SumType { automatic, f32, gradients };
inline constexpr std::string_view kSumTypeWords[] = {"auto", "fp32", "gradients"};
constexpr std::span<const std::string_view> words_of(SumType) { return kSumTypeWords; }

// The largest share of a sum that `automatic` may lose to rounding, in the worst case of equal terms.
inline constexpr double kMostLostOfSum = 1.0 / 32;

// True if a sum of this many terms uses fp32. automatic: if n - 1 roundings by half a unit of the type could
// lose more than kMostLostOfSum, which is from 10 terms of bf16 and from 66 of fp16.
constexpr bool sums_in_f32(SumType given, DType type, std::int64_t terms) {
  if (type == DType::f32 || terms < 2 || given == SumType::gradients) return false;
  const double rounding = type == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return given == SumType::f32 || static_cast<double>(terms - 1) * rounding > kMostLostOfSum;
}

}  // namespace lockstep
