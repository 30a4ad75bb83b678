// SPDX-License-Identifier: Apache-2.0
//
// What the logits of a batch say of its samples, counted by classes. A sample's prediction is the first of
// its largest logits. It has none, and counts as no class, where its loss would be NaN: with a NaN among its
// logits, or an infinite largest one. So what is counted right here is what LossSums::correct counts. A
// sample of weight zero does not count. Counts are integers: the order in which they are added does not
// matter. Everything lies in device memory.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace lockstep {

struct ClassCounts {
  static constexpr std::int64_t kTop = 5;

  std::int64_t batch = 0;
  std::int64_t classes = 0;
  DType type = DType::f32;               // of the logits
  const void* logits = nullptr;          // [batch, classes]
  const std::int32_t* labels = nullptr;  // [batch], each in [0, classes); a GPU does not count others
  const float* weights = nullptr;        // [batch]
  // Added to; null: not wanted.
  // [1]: samples with a prediction whose label has fewer than kTop classes before it: those of larger logits,
  // and those of equal ones with a smaller number.
  std::int32_t* in_top = nullptr;
  std::int32_t* by_class = nullptr;   // [3, classes]: samples of a class, predicted as it, and both at once
  std::int32_t* confusion = nullptr;  // [classes, classes]: by label and prediction
};

}  // namespace lockstep
