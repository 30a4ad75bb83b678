// SPDX-License-Identifier: Apache-2.0
//
// Softmax cross-entropy with a weight per sample. A weight of zero excludes a sample from loss, gradient and
// counts; evaluation uses it to pad its last batch. All memory is device memory.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"

namespace lockstep {

// The sums over one batch. In device memory.
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
  // [batch], if images are mixed in pairs (kernels/mixing.h): the target of sample i gives the remaining 1 -
  // shares[i] to the label of its partner, i ^ 1. Null: all 1. LossSums::correct compares with the sample's
  // own label.
  const float* shares = nullptr;
  // In [0, 1]: the target is (1 - label_smoothing) * onehot(label) + label_smoothing / classes (Szegedy et
  // al., 2016, section 7), for loss and gradient.
  float label_smoothing = 0;
  // logits_gradient = gradient_scale * *loss_scale * weight * (softmax(logits) - target). May alias logits;
  // null: not wanted. gradient_scale is 1 / global_batch; the average over the batch is taken only here.
  float gradient_scale = 0;
  const float* loss_scale = nullptr;  // null: 1
  void* logits_gradient = nullptr;    // NaN for a sample whose loss is not finite
  LossSums* sums = nullptr;           // overwritten
  void* scratch = nullptr;            // Backend::loss_scratch_bytes(), aligned to 16 bytes
};

}  // namespace lockstep
