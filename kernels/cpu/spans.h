// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations over one span of memory, on the calling thread; larger operations distribute spans
// over threads. Compiled for several instruction sets, chosen at run time. All give the same bits, because
// spans.cpp is compiled without fused multiply-add.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"
#include "kernels/elementwise.h"

namespace lockstep {

void cast_span(const Cast& a);
void add_span(const Addition& a);
void scale_span(const Scaling& a);
void activation_forward_span(const ActivationForward& a);
void activation_backward_span(const ActivationBackward& a);

// to += from, summed in fp32 and rounded once to `type`.
struct SumInto {
  DType type = DType::f32;
  std::int64_t count = 0;
  const float* from = nullptr;
  void* to = nullptr;
};
void sum_into_span(const SumInto& a);

}  // namespace lockstep
