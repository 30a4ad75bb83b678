// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations for use inside other CPU kernels: they run immediately, on the calling thread and
// its OpenMP team.
#pragma once

#include <cstdint>

#include <omp.h>

#include "kernels/cpu/spans.h"
#include "kernels/elementwise.h"

namespace lockstep {

// Below this many elements one thread is faster than waking a team.
constexpr std::int64_t kParallelElements = 1 << 14;
inline int threads_for(std::int64_t elements) {
  return elements >= kParallelElements ? omp_get_max_threads() : 1;
}

void cpu_add(const Addition& arguments);
void cpu_sum_into(const SumInto& arguments);
void cpu_cast(const Cast& arguments);
void cpu_activate(const ActivationForward& arguments);
void cpu_check_finite(const FiniteCheck& arguments);

}  // namespace lockstep
