// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations within other kernels of the CPU: at once, on the calling thread and its OpenMP team.
#pragma once

#include <cstdint>

#include "kernels/cpu/spans.h"
#include "kernels/elementwise.h"

namespace lockstep {

// Below this many elements one thread is done before a team is awake.
constexpr std::int64_t kParallelElements = 1 << 14;

void cpu_add(const Addition& arguments);
void cpu_sum_into(const SumInto& arguments);
void cpu_cast(const Cast& arguments);
void cpu_activate(const ActivationForward& arguments);
void cpu_check_finite(const FiniteCheck& arguments);

}  // namespace lockstep
