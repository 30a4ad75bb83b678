// SPDX-License-Identifier: Apache-2.0
#include "kernels/class_counts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/element.h"
#include "kernels/loss_functors.h"

namespace lockstep {
namespace {

// Samples per block of answers: enough for all threads, also with few classes.
constexpr std::int64_t kAnswersAtOnce = 1 << 14;
// Below this many logits one thread is faster than waking a team.
constexpr std::int64_t kLogitsForATeam = 1 << 13;

struct Answer {
  std::int64_t prediction = -1;  // -1: none
  std::int64_t before_label = 0;
};

template <typename T>
Answer answer_of(const ClassCounts& a, std::int64_t sample) {
  if (a.single_output) {
    const auto output = static_cast<float>(static_cast<const T*>(a.logits)[sample]);
    return {.prediction = class_of_output(a.loss, output, a.classes)};
  }
  const T* logits = static_cast<const T*>(a.logits) + sample * a.classes;
  const std::int64_t label = a.labels[sample];
  const float of_label = static_cast<float>(logits[label]);
  Answer answer{.prediction = 0};
  float largest = static_cast<float>(logits[0]);
  bool all_numbers = true;
  for (std::int64_t k = 0; k < a.classes; ++k) {
    const float logit = static_cast<float>(logits[k]);
    if (logit > largest) {
      largest = logit;
      answer.prediction = k;
    }
    all_numbers = all_numbers && !std::isnan(logit);
    answer.before_label += logit > of_label || (logit == of_label && k < label) ? 1 : 0;
  }
  if (!all_numbers || std::isinf(largest)) answer.prediction = -1;
  return answer;
}

void count(const ClassCounts& a, std::int64_t label, const Answer& answer) {
  const std::int64_t prediction = answer.prediction;
  if (a.by_class != nullptr) {
    ++a.by_class[label];
    if (prediction >= 0) ++a.by_class[a.classes + prediction];
    if (prediction == label) ++a.by_class[2 * a.classes + label];
  }
  if (prediction < 0) return;
  if (a.in_top != nullptr && answer.before_label < ClassCounts::kTop) ++*a.in_top;
  if (a.confusion != nullptr) ++a.confusion[label * a.classes + prediction];
}

}  // namespace

void CpuBackend::count_classes(Stream&, const ClassCounts& a) {
  thread_local std::vector<Answer> memory;
  memory.resize(static_cast<std::size_t>(std::max(std::ssize(memory), std::min(a.batch, kAnswersAtOnce))));
  Answer* const answers = memory.data();
  for (std::int64_t begin = 0; begin < a.batch; begin += kAnswersAtOnce) {
    const std::int64_t samples = std::min(kAnswersAtOnce, a.batch - begin);
    for (std::int64_t i = begin; i < begin + samples; ++i)
      CHECK(a.labels[i] >= 0 && a.labels[i] < a.classes, "sample {} has label {}, there are {} classes", i,
            a.labels[i], a.classes);
    with_element(a.type, [&](auto element) {
      using T = typename decltype(element)::type;
#pragma omp parallel for schedule(static) if (samples * a.classes >= kLogitsForATeam)
      for (std::int64_t i = 0; i < samples; ++i) answers[i] = answer_of<T>(a, begin + i);
    });
    for (std::int64_t i = 0; i < samples; ++i)
      if (a.weights[begin + i] != 0) count(a, a.labels[begin + i], answers[i]);
  }
}

}  // namespace lockstep
