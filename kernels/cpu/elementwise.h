// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations for use inside other CPU kernels: they run immediately, on the calling thread and
// its OpenMP team.
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

#include "kernels/cpu/deal.h"
#include "kernels/cpu/spans.h"
#include "kernels/elementwise.h"

namespace lockstep {

// Below this many elements one thread is faster than waking a team.
constexpr std::int64_t kParallelElements = 1 << 14;
inline int threads_for(std::int64_t elements) {
  return elements >= kParallelElements ? omp_get_max_threads() : 1;
}
// Calls body(begin, count) for spans that cover all elements, in parallel. Bodies of different spans must
// write different elements.
template <typename Body>
void in_spans(std::int64_t elements, Body body) {
  constexpr std::int64_t kSpan = 1 << 13;
  if (elements < kParallelElements) return body(0, elements);
  deal((elements + kSpan - 1) / kSpan, [=](std::int64_t span) {
    const std::int64_t begin = span * kSpan;
    body(begin, std::min(kSpan, elements - begin));
  });
}

void cpu_add(const Addition& arguments);
void cpu_sum_into(const SumInto& arguments);
void cpu_cast(const Cast& arguments);
void cpu_activate(const ActivationForward& arguments);
void cpu_check_finite(const FiniteCheck& arguments);

}  // namespace lockstep
