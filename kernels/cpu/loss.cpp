// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/element.h"
#include "kernels/loss_functors.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

// Samples per block of results: enough for all threads, also with few classes.
constexpr std::int64_t kChunkSamples = 1 << 14;
// Below this many logits one thread is faster than waking a team.
constexpr std::int64_t kParallelLogits = 1 << 13;

struct SampleResult {
  double loss = 0;
  bool correct = false;
};

// Works in place if gradient is logits: each element is last read before it is written.
template <typename T>
SampleResult sample_loss(const SoftmaxCrossEntropy& a, std::int64_t sample) {
  const T* logits = static_cast<const T*>(a.logits) + sample * a.classes;
  T* gradient =
      a.logits_gradient == nullptr ? nullptr : static_cast<T*>(a.logits_gradient) + sample * a.classes;
  const auto logit = [logits](std::int64_t k) { return static_cast<float>(logits[k]); };
  const std::int32_t label = a.labels[sample];
  const float weight = a.weights[sample];
  if (weight == 0) {
    if (gradient != nullptr) std::fill_n(gradient, a.classes, T());
    return {};
  }
  std::int64_t largest = 0;
  for (std::int64_t k = 1; k < a.classes; ++k) largest = logit(largest) < logit(k) ? k : largest;
  const float shift = logit(largest);  // exp(logit - shift) cannot overflow
  const double label_logit = static_cast<double>(logit(label)) - shift;
  double sum = 0;
  double logit_sum = 0;  // shifted
  for (std::int64_t k = 0; k < a.classes; ++k) {
    logit_sum += static_cast<double>(logit(k)) - shift;
    sum += std::exp(logit(k) - shift);
  }
  const double share = a.shares == nullptr ? 1.0 : static_cast<double>(a.shares[sample]);
  const std::int32_t other = share < 1 ? a.labels[sample ^ 1] : label;
  const double on_each = static_cast<double>(a.label_smoothing) / static_cast<double>(a.classes);
  const double on_label = share * (1.0 - static_cast<double>(a.label_smoothing));
  const double on_other = (1.0 - share) * (1.0 - static_cast<double>(a.label_smoothing));
  // Without smoothing the other logits do not contribute: they may be -infinity.
  const double smoothed = a.label_smoothing == 0 ? 0.0 : on_each * logit_sum;
  const double others = share < 1 ? on_other * (static_cast<double>(logit(other)) - shift) : 0.0;
  const double loss = weight * (std::log(sum) - on_label * label_logit - others - smoothed);
  if (gradient != nullptr) {
    const double loss_scale = a.loss_scale == nullptr ? 1.0 : static_cast<double>(*a.loss_scale);
    // A step is skipped if its gradients are not finite. The derivatives of an infinite loss (a label's logit
    // of -inf) are finite, also in PyTorch; NaN is written so that the step is skipped.
    const double scale = std::isfinite(static_cast<float>(loss))
                             ? static_cast<double>(a.gradient_scale) * loss_scale * weight
                             : std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t k = 0; k < a.classes; ++k) {
      const double target = (k == label ? on_label : 0.0) + (k == other ? on_other : 0.0) + on_each;
      const double probability = std::exp(logit(k) - shift) / sum;
      gradient[k] = static_cast<T>(static_cast<float>(scale * (probability - target)));
    }
  }
  return {.loss = loss, .correct = largest == label && !std::isnan(loss)};
}

template <typename T, typename Function>
SampleResult sample_output_loss(const OutputLoss& a, Function function, std::int64_t sample) {
  const T* logits = static_cast<const T*>(a.logits) + sample * a.outputs;
  T* gradient =
      a.logits_gradient == nullptr ? nullptr : static_cast<T*>(a.logits_gradient) + sample * a.outputs;
  const float weight = a.weights[sample];
  if (weight == 0) {
    if (gradient != nullptr) std::fill_n(gradient, a.outputs, T());
    return {};
  }
  const OutputTargets target = OutputTargets::of(a, sample);
  double sum = 0;
  std::int64_t largest = 0;
  for (std::int64_t k = 0; k < a.outputs; ++k) {
    sum += function.loss(static_cast<double>(static_cast<float>(logits[k])), target(k));
    if (static_cast<float>(logits[largest]) < static_cast<float>(logits[k])) largest = k;
  }
  if (a.outputs == 1) {
    largest = class_of_output(a.loss, static_cast<float>(logits[0]), a.classes);
  } else if (std::isinf(static_cast<float>(logits[largest]))) {
    largest = -1;  // as count_classes() does
  }
  const double loss = weight * sum / static_cast<double>(a.outputs);
  if (gradient != nullptr) {
    const double loss_scale = a.loss_scale == nullptr ? 1.0 : static_cast<double>(*a.loss_scale);
    const double scale =
        std::isfinite(static_cast<float>(loss))
            ? static_cast<double>(a.gradient_scale) * loss_scale * weight / static_cast<double>(a.outputs)
            : std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t k = 0; k < a.outputs; ++k) {
      const double slope = function.slope(static_cast<double>(static_cast<float>(logits[k])), target(k));
      gradient[k] = static_cast<T>(static_cast<float>(scale * slope));
    }
  }
  return {.loss = loss, .correct = largest == a.labels[sample] && !std::isnan(loss)};
}

template <typename Arguments>
void check_labels(const Arguments& a) {
  for (std::int64_t sample = 0; sample < a.batch; ++sample) {
    const std::int32_t label = a.labels[sample];
    CHECK(label >= 0 && label < a.classes, "sample {} has label {}, there are {} classes", sample, label,
          a.classes);
  }
}

// result_of(element, sample) computes one sample. Samples are computed in parallel and summed in order, so
// the sums do not depend on the number of threads.
template <typename Arguments, typename ResultOf>
void sum_samples(const Arguments& a, std::int64_t outputs, ResultOf result_of) {
  check_labels(a);
  thread_local std::vector<SampleResult> memory;
  memory.resize(static_cast<std::size_t>(std::max(std::ssize(memory), std::min(a.batch, kChunkSamples))));
  SampleResult* const results = memory.data();
  double loss = 0;
  double weight = 0;
  LossSums sums;
  for (std::int64_t begin = 0; begin < a.batch; begin += kChunkSamples) {
    const std::int64_t count = std::min(kChunkSamples, a.batch - begin);
    with_element(a.type, [&](auto element) {
#pragma omp parallel for schedule(static) if (count * outputs >= kParallelLogits)
      for (std::int64_t i = 0; i < count; ++i) results[i] = result_of(element, begin + i);
    });
    for (std::int64_t i = 0; i < count; ++i) {
      if (a.weights[begin + i] == 0) continue;
      loss += results[i].loss;
      weight += a.weights[begin + i];
      sums.correct += results[i].correct ? 1 : 0;
      ++sums.samples;
    }
  }
  sums.loss = static_cast<float>(loss);
  sums.weight = static_cast<float>(weight);
  *a.sums = sums;
}

}  // namespace

void CpuBackend::softmax_cross_entropy(Stream&, const SoftmaxCrossEntropy& a) {
  sum_samples(a, a.classes, [&](auto element, std::int64_t sample) {
    return sample_loss<typename decltype(element)::type>(a, sample);
  });
}

void CpuBackend::output_loss(Stream&, const OutputLoss& a) {
  check_output_loss(a);
  with_output_loss(a.loss, [&](auto function) {
    sum_samples(a, a.outputs, [&](auto element, std::int64_t sample) {
      return sample_output_loss<typename decltype(element)::type>(a, function, sample);
    });
  });
}

}  // namespace lockstep
