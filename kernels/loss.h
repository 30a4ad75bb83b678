// SPDX-License-Identifier: Apache-2.0
//
// Losses with a weight per sample. A weight of zero excludes a sample from loss, gradient and counts;
// evaluation uses it to pad its last batch. All memory is device memory.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/tensor/dtype.h"

namespace lockstep {

// See SoftmaxCrossEntropy for cross_entropy, and OutputLoss for the other two.
enum class Loss { cross_entropy, binary_cross_entropy, mean_squared_error };
inline constexpr std::string_view kLossWords[] = {"cross_entropy", "binary_cross_entropy",
                                                  "mean_squared_error"};
constexpr std::span<const std::string_view> words_of(Loss) { return kLossWords; }

// The sums over one batch. In device memory.
struct LossSums {
  float loss = 0;            // sum over samples of weight * the sample's loss
  float weight = 0;          // sum of the weights
  std::int32_t correct = 0;  // samples of non-zero weight whose predicted class is the label
  std::int32_t samples = 0;  // samples of non-zero weight
};

// A sample's loss is -sum over k of target[k] * log softmax(logits)[k], its class that of the largest logit.
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

// A loss of each output against its target: a sample's loss is the mean over its outputs. Members that
// SoftmaxCrossEntropy has, too, mean the same.
//
// With several outputs, one for each class, targets are those of SoftmaxCrossEntropy, and a sample's class is
// that of its largest output. With one output the target is the label as a number. The sample's class is then
// 1 for logits above 0 and else 0 (binary_cross_entropy: two classes), or the nearest whole number in
// [0, classes) (mean_squared_error, which ignores label smoothing here).
struct OutputLoss {
  Loss loss = Loss::binary_cross_entropy;  // of sigmoid(output); mean_squared_error: of the output itself
  std::int64_t batch = 0;
  std::int64_t classes = 0;  // labels are in [0, classes)
  std::int64_t outputs = 0;  // classes, or 1
  DType type = DType::f32;
  const void* logits = nullptr;  // [batch, outputs]
  const std::int32_t* labels = nullptr;
  const float* weights = nullptr;
  const float* shares = nullptr;
  float label_smoothing = 0;
  float gradient_scale = 0;
  const float* loss_scale = nullptr;
  void* logits_gradient = nullptr;
  LossSums* sums = nullptr;
  void* scratch = nullptr;
};

}  // namespace lockstep
