// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/cpu/kernels.h"

namespace lockstep {
namespace {

// One sample: its loss, and its softmax turned into the gradient. exp(logit - largest) cannot overflow.
double sample_loss(const SoftmaxCrossEntropy& a, std::int64_t sample, bool* correct) {
  const float* logits = a.logits + sample * a.classes;
  const std::int32_t label = a.labels[sample];
  const float weight = a.weights[sample];
  const auto largest = std::max_element(logits, logits + a.classes);
  const float shift = *largest;
  const float label_logit = logits[label];
  *correct = largest - logits == label;
  double sum = 0;
  for (std::int64_t k = 0; k < a.classes; ++k) sum += std::exp(logits[k] - shift);
  if (a.logits_gradient != nullptr) {
    float* gradient = a.logits_gradient + sample * a.classes;
    const float scale = a.gradient_scale * weight;
    const auto inverse = static_cast<float>(1.0 / sum);
    for (std::int64_t k = 0; k < a.classes; ++k) {
      const float probability = std::exp(logits[k] - shift) * inverse;
      gradient[k] = weight == 0 ? 0 : scale * (probability - (k == label ? 1.0f : 0.0f));
    }
  }
  return weight * (std::log(sum) - (static_cast<double>(label_logit) - shift));
}

}  // namespace

// Sums run over samples in order, in double, whatever the number of threads.
void cpu_softmax_cross_entropy(const SoftmaxCrossEntropy& a) {
  double loss = 0;
  double weight = 0;
  LossSums sums;
  for (std::int64_t sample = 0; sample < a.batch; ++sample) {
    const std::int32_t label = a.labels[sample];
    CHECK(label >= 0 && label < a.classes, "sample {} has label {}, there are {} classes", sample, label,
          a.classes);
    bool correct = false;
    const double mine = sample_loss(a, sample, &correct);
    if (a.weights[sample] == 0) continue;
    loss += mine;
    weight += a.weights[sample];
    sums.correct += correct ? 1 : 0;
    ++sums.samples;
  }
  sums.loss = static_cast<float>(loss);
  sums.weight = static_cast<float>(weight);
  *a.sums = sums;
}

}  // namespace lockstep
