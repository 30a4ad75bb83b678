// SPDX-License-Identifier: Apache-2.0
//
// Concatenates the channels of two tensors [N, C, H, W], and splits them again.
#pragma once

#include <cstdint>

#include "core/tensor/layout.h"

namespace lockstep {

// The result's memory has `rows` rows: a_elements of `a`, then b_elements of `b`.
struct ConcatenationShape {
  std::int64_t rows = 0;
  std::int64_t a_elements = 0;
  std::int64_t b_elements = 0;
  DType type = DType::f32;
};

struct ConcatenationPlan {
  Layout a, b;  // the layouts that the inputs must have
  Layout output;
  ConcatenationShape shape;
};

struct Concatenation {
  ConcatenationShape shape;
  const void* a = nullptr;
  const void* b = nullptr;
  void* joined = nullptr;
};

struct Separation {
  ConcatenationShape shape;
  const void* joined = nullptr;
  void* a = nullptr;  // null: not wanted
  void* b = nullptr;
};

}  // namespace lockstep
