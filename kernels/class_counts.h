// SPDX-License-Identifier: Apache-2.0
//
// Counts by class of a batch's predictions. A sample's prediction is the class of its first largest logit. A
// sample has no prediction if its loss would be NaN: if a logit is NaN or the largest logit is infinite. So
// these counts agree with LossSums::correct. Samples of weight zero are not counted. Counts are integers, so
// the order of addition does not matter. All memory is device memory.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"
#include "kernels/loss.h"

namespace lockstep {

struct ClassCounts {
  static constexpr std::int64_t kTop = 5;

  std::int64_t batch = 0;
  std::int64_t classes = 0;
  // True: each sample has one logit, and OutputLoss defines which class it means. in_top must be null.
  bool single_output = false;
  Loss loss = Loss::cross_entropy;       // read only with single_output
  DType type = DType::f32;               // of the logits
  const void* logits = nullptr;          // [batch, classes], or [batch, 1]
  const std::int32_t* labels = nullptr;  // [batch], each in [0, classes); a GPU skips samples outside
  const float* weights = nullptr;        // [batch]
  // Counts are added to these; null: not wanted.
  // in_top [1]: samples with a prediction whose label has fewer than kTop classes before it: classes with a
  // larger logit, or with an equal logit and a smaller index.
  std::int32_t* in_top = nullptr;
  std::int32_t* by_class = nullptr;  // [3, classes]: samples with this label, with this prediction, with both
  std::int32_t* confusion = nullptr;  // [classes, classes]: by label and prediction
};

}  // namespace lockstep
