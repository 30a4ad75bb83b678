// SPDX-License-Identifier: Apache-2.0
//
// One warp per sample reads its logits once; its first lane then adds the sample to the counts with atomic
// additions. The counts are integers, so their order does not matter. The logits usually come from the cache,
// because the loss has just read them.
#include <cmath>
#include <limits>

#include "kernels/cuda/class_counts.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/largest.h"
#include "kernels/cuda/launch.h"
#include "kernels/loss_functors.h"

namespace lockstep {
namespace {

constexpr int kCountWarps = 4;  // per block

// One sample's result; the same in every lane.
struct Prediction {
  int predicted;  // class, or -1 if there is none
  int before;     // logits that precede the label's
};

template <typename T>
__device__ inline Prediction prediction_of(const ClassCounts& a, std::int64_t sample, int label, int lane) {
  if (a.single_output) {
    const float output = to_float(static_cast<const T*>(a.logits)[sample]);
    return {static_cast<int>(class_of_output(a.loss, output, a.classes)), 0};
  }
  const int classes = static_cast<int>(a.classes);
  const T* logits = static_cast<const T*>(a.logits) + sample * a.classes;
  const float of_label = to_float(logits[label]);
  Largest largest;
  int before = 0, bad = 0;  // bad: NaNs
  for (int k = lane; k < classes; k += kWarpThreads) {
    const float logit = to_float(logits[k]);
    largest.take(logit, k);
    before += logit > of_label || (logit == of_label && k < label) ? 1 : 0;
    bad += logit != logit ? 1 : 0;
  }
  largest = warp_largest(largest);
  before = warp_sum(before);
  bad = warp_sum(bad);
  const bool answers = bad == 0 && fabsf(largest.value) <= std::numeric_limits<float>::max();
  return {answers ? largest.place : -1, before};
}

template <typename T>
__global__ void __launch_bounds__(kCountWarps* kWarpThreads) count_classes_kernel(ClassCounts a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const std::int64_t sample = std::int64_t{blockIdx.x} * kCountWarps + threadIdx.x / kWarpThreads;
  if (sample >= a.batch) return;  // the whole warp
  const int classes = static_cast<int>(a.classes), label = a.labels[sample];
  if (a.weights[sample] == 0 || label < 0 || label >= classes) return;
  const auto [prediction, before] = prediction_of<T>(a, sample, label, lane);
  if (lane != 0) return;
  const bool answers = prediction >= 0;
  if (a.by_class != nullptr) {
    atomicAdd(a.by_class + label, 1);
    if (answers) atomicAdd(a.by_class + a.classes + prediction, 1);
    if (prediction == label) atomicAdd(a.by_class + 2 * a.classes + label, 1);
  }
  if (!answers) return;
  if (a.in_top != nullptr && before < ClassCounts::kTop) atomicAdd(a.in_top, 1);
  if (a.confusion != nullptr) atomicAdd(a.confusion + label * a.classes + prediction, 1);
}

}  // namespace

void cuda_count_classes(Stream& stream, const ClassCounts& a) {
  CHECK(a.classes > 0 && a.classes <= std::numeric_limits<int>::max(),
        "the number of classes is {}, expected 1 to 2^31 - 1", a.classes);
  if (a.batch == 0) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    launch(count_classes_kernel<T>,
           {.grid = dim3(static_cast<unsigned>(ceil_div(a.batch, kCountWarps))),
            .block = dim3(kCountWarps * kWarpThreads)},
           stream, a);
  });
}

}  // namespace lockstep
