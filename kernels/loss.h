// SPDX-License-Identifier: Apache-2.0
//
// Softmax cross-entropy with a weight per sample. A weight of zero takes a sample out of everything: loss,
// gradient and counts; that is how evaluation pads its last batch. Everything lies in device memory.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace lockstep {

// What one batch contributed. In device memory.
struct LossSums {
  float loss = 0;            // sum over samples of weight * -sum over k of target[k] * log softmax(logits)[k]
  float weight = 0;          // sum of the weights
  std::int32_t correct = 0;  // samples of non-zero weight whose largest logit is the label's
  std::int32_t samples = 0;  // samples of non-zero weight
};

struct SoftmaxCrossEntropy {
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  DType type = DType::f32;               // of logits and their gradient; softmax and sums are fp32 or wider
  const void* logits = nullptr;          // [batch, classes]
  const std::int32_t* labels = nullptr;  // [batch], each in [0, classes)
  const float* weights = nullptr;        // [batch]
  // [batch], where images are mixed in pairs (kernels/mixing.h): the rest of sample i's target, 1 -
  // shares[i], is the label of its partner, i ^ 1. Null: 1. Counts as correct what is the sample's own label.
  const float* shares = nullptr;
  // In [0, 1]: the target is (1 - label_smoothing) * onehot(label) + label_smoothing / classes (Szegedy et
  // al., 2016, section 7), in the loss and in the gradient.
  float label_smoothing = 0;
  // logits_gradient = gradient_scale * *loss_scale * weight * (softmax(logits) - target). May alias logits;
  // null: not wanted. gradient_scale is 1 / global_batch: the one place where anything is averaged.
  float gradient_scale = 0;
  const float* loss_scale = nullptr;  // null: 1
  void* logits_gradient = nullptr;    // NaN for a sample whose loss is not finite
  LossSums* sums = nullptr;           // overwritten
  void* scratch = nullptr;            // Backend::loss_scratch_bytes(), aligned to 16 bytes
};

}  // namespace lockstep
