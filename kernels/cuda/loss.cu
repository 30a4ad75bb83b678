// SPDX-License-Identifier: Apache-2.0
//
// One warp computes one sample; then one block sums over the samples, or several blocks over many. Bytes of
// memory traffic per logit: one element read (and read twice more from the cache) and its gradient written (8
// bytes in fp32, 4 in half types). The rows of images are too few and too short for wider accesses to matter.
// Rows of pixels, with few classes, are many: a warp for each leaves most lanes idle.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/element.h"
#include "kernels/cuda/largest.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/reduce.h"
#include "kernels/loss_functors.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

constexpr int kBlockWarps = 4;

struct SampleLoss {
  double loss;
  std::int32_t correct;
};

// LossSums over a part of the samples, before rounding.
struct PartialSums {
  double loss;
  double weight;
  std::int32_t correct;
  std::int32_t samples;
};
constexpr std::int64_t kMostParts = kBlockThreads;

// The number of parts that are summed separately. It depends only on the batch: it decides the last bits.
std::int64_t parts_of(std::int64_t batch) {
  constexpr std::int64_t kPartSamples = 4096;  // at least; below this a second launch costs more
  return std::clamp<std::int64_t>(batch / kPartSamples, 1, kMostParts);
}

template <typename T>
struct Batch {
  std::int64_t batch;
  int classes;
  const T* logits;
  const std::int32_t* labels;
  const float* weights;
  const float* shares;
  float label_smoothing;
  float gradient_scale;
  const float* loss_scale;
  T* gradient;
  SampleLoss* losses;
};

template <typename T>
__device__ inline Largest largest_of(const T* logits, int classes, int lane) {
  Largest largest;
  for (int k = lane; k < classes; k += kWarpThreads) largest.take(to_float(logits[k]), k);
  return warp_largest(largest);
}

template <typename T>
__global__ void __launch_bounds__(kBlockWarps* kWarpThreads) sample_loss_kernel(Batch<T> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const std::int64_t sample = std::int64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarpThreads;
  if (sample >= a.batch) return;  // the whole warp
  const T* logits = a.logits + sample * a.classes;
  T* gradient = a.gradient == nullptr ? nullptr : a.gradient + sample * a.classes;
  const float weight = a.weights[sample];
  if (weight == 0) {
    for (int k = lane; gradient != nullptr && k < a.classes; k += kWarpThreads)
      gradient[k] = from_float<T>(0);
    return;
  }
  const int label = a.labels[sample];
  const Largest largest = largest_of(logits, a.classes, lane);
  const auto logit_of = [&](int k) {
    const bool there = k >= 0 && k < a.classes;
    return static_cast<double>(there ? to_float(logits[k]) : NAN) - static_cast<double>(largest.value);
  };
  const double label_logit = logit_of(label);
  const double share = a.shares == nullptr ? 1.0 : static_cast<double>(a.shares[sample]);
  const int other = share < 1 ? a.labels[sample ^ 1] : label;
  const double other_logit = share < 1 ? (1.0 - share) * logit_of(other) : 0.0;
  double sum = 0;
  double logit_sum = 0;  // sum of logit - largest
  for (int k = lane; k < a.classes; k += kWarpThreads) {
    const float logit = to_float(logits[k]);
    sum += static_cast<double>(expf(logit - largest.value));
    logit_sum += static_cast<double>(logit) - static_cast<double>(largest.value);
  }
  sum = warp_sum(sum);
  logit_sum = warp_sum(logit_sum);
  const double smoothing = static_cast<double>(a.label_smoothing);
  const double on_each = smoothing / a.classes;
  // Without smoothing the other logits do not contribute: they may be -infinity.
  const double smoothed = smoothing == 0 ? 0.0 : on_each * logit_sum;
  const double loss = static_cast<double>(weight) *
                      (log(sum) - (1.0 - smoothing) * (share * label_logit + other_logit) - smoothed);
  __syncwarp();  // all lanes have read the labels' logits, which the gradient may overwrite
  if (gradient != nullptr) {
    // As on the CPU: the gradients of an infinite loss are finite; NaN is written so that the step is
    // skipped.
    const bool finite = fabs(loss) <= static_cast<double>(std::numeric_limits<float>::max());
    const double scale = finite ? static_cast<double>(a.gradient_scale) * static_cast<double>(weight) *
                                      static_cast<double>(a.loss_scale == nullptr ? 1.0f : *a.loss_scale)
                                : static_cast<double>(NAN);
    for (int k = lane; k < a.classes; k += kWarpThreads) {
      const double power = static_cast<double>(expf(to_float(logits[k]) - largest.value));
      const double own = k == label ? share : 0.0, partners = k == other ? 1.0 - share : 0.0;
      const double target = (1.0 - smoothing) * (own + partners) + on_each;
      gradient[k] = from_float<T>(static_cast<float>(scale * (power / sum - target)));
    }
  }
  if (lane != 0) return;
  a.losses[sample] = {loss, largest.place == label && !(loss != loss) ? 1 : 0};
}

template <typename T, typename Function>
__global__ void __launch_bounds__(kBlockWarps* kWarpThreads)
    output_loss_kernel(OutputLoss a, Function function, SampleLoss* losses) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const std::int64_t sample = std::int64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarpThreads;
  if (sample >= a.batch) return;  // the whole warp
  const int outputs = static_cast<int>(a.outputs);
  const T* logits = static_cast<const T*>(a.logits) + sample * outputs;
  T* gradient =
      a.logits_gradient == nullptr ? nullptr : static_cast<T*>(a.logits_gradient) + sample * outputs;
  const float weight = a.weights[sample];
  if (weight == 0) {
    for (int k = lane; gradient != nullptr && k < outputs; k += kWarpThreads) gradient[k] = from_float<T>(0);
    return;
  }
  const OutputTargets target = OutputTargets::of(a, sample);
  const bool known = target.label >= 0 && target.label < a.classes;
  Largest largest;
  double sum = 0;
  for (int k = lane; k < outputs; k += kWarpThreads) {
    largest.take(to_float(logits[k]), k);
    sum += function.loss(static_cast<double>(to_float(logits[k])), target(k));
  }
  largest = warp_largest(largest);
  sum = known ? warp_sum(sum) : static_cast<double>(NAN);
  const double loss = static_cast<double>(weight) * sum / outputs;
  const std::int64_t prediction = outputs == 1 ? class_of_output(a.loss, to_float(logits[0]), a.classes)
                                  : fabsf(largest.value) <= std::numeric_limits<float>::max()
                                      ? largest.place
                                      : -1;  // as count_classes() does
  __syncwarp();  // all lanes have read the logits, which the gradient may overwrite
  if (gradient != nullptr) {
    const bool finite = fabs(loss) <= static_cast<double>(std::numeric_limits<float>::max());
    const double scale = finite ? static_cast<double>(a.gradient_scale) * static_cast<double>(weight) *
                                      static_cast<double>(a.loss_scale == nullptr ? 1.0f : *a.loss_scale) /
                                      outputs
                                : static_cast<double>(NAN);
    for (int k = lane; k < outputs; k += kWarpThreads) {
      const double slope = function.slope(static_cast<double>(to_float(logits[k])), target(k));
      gradient[k] = from_float<T>(static_cast<float>(scale * slope));
    }
  }
  if (lane != 0) return;
  losses[sample] = {loss, prediction == target.label && !(loss != loss) ? 1 : 0};
}

// One block per part: sums[block] = the sums over every gridDim.x-th run of kBlockThreads samples.
template <typename Sums>
__global__ void __launch_bounds__(kBlockThreads)
    loss_sums_kernel(std::int64_t batch, const float* weights, const SampleLoss* losses, Sums* sums) {
  double loss = 0;
  double weight = 0;
  int correct = 0;
  int samples = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < batch;
       i += std::int64_t{gridDim.x} * kBlockThreads) {
    if (weights[i] == 0) continue;
    loss += losses[i].loss;
    weight += static_cast<double>(weights[i]);
    correct += losses[i].correct;
    ++samples;
  }
  loss = block_sum(loss);
  weight = block_sum(weight);
  correct = block_sum(correct);
  samples = block_sum(samples);
  if (threadIdx.x != 0) return;
  sums[blockIdx.x].loss = static_cast<decltype(sums->loss)>(loss);
  sums[blockIdx.x].weight = static_cast<decltype(sums->weight)>(weight);
  sums[blockIdx.x].correct = correct;
  sums[blockIdx.x].samples = samples;
}

// One block, one thread per part.
__global__ void __launch_bounds__(kBlockThreads)
    add_parts_kernel(std::int64_t parts, const PartialSums* partial, LossSums* sums) {
  const PartialSums mine = threadIdx.x < parts ? partial[threadIdx.x] : PartialSums{};
  const double loss = block_sum(mine.loss), weight = block_sum(mine.weight);
  const int correct = block_sum(mine.correct), samples = block_sum(mine.samples);
  if (threadIdx.x != 0) return;
  sums->loss = static_cast<float>(loss);
  sums->weight = static_cast<float>(weight);
  sums->correct = correct;
  sums->samples = samples;
}

// The parts follow the samples' losses in scratch memory.
void sum_losses(Stream& stream, std::int64_t batch, const float* weights, SampleLoss* losses,
                LossSums* sums) {
  const std::int64_t parts = parts_of(batch);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(parts)), .block = dim3(kBlockThreads)};
  const auto* all = static_cast<const SampleLoss*>(losses);
  if (parts == 1) return launch(loss_sums_kernel<LossSums>, shape, stream, batch, weights, all, sums);
  auto* partial = reinterpret_cast<PartialSums*>(losses + batch);
  launch(loss_sums_kernel<PartialSums>, shape, stream, batch, weights, all, partial);
  launch(add_parts_kernel, {.grid = dim3(1), .block = dim3(kBlockThreads)}, stream, parts,
         static_cast<const PartialSums*>(partial), sums);
}

}  // namespace

std::size_t cuda_loss_scratch_bytes(std::int64_t batch) {
  const std::int64_t parts = parts_of(batch);
  return static_cast<std::size_t>(batch) * sizeof(SampleLoss) +
         (parts > 1 ? static_cast<std::size_t>(parts) * sizeof(PartialSums) : 0);
}

void cuda_softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& a) {
  CHECK(a.classes > 0 && a.classes <= std::numeric_limits<int>::max(),
        "the number of classes is {}, expected 1 to 2^31 - 1", a.classes);
  auto* losses = static_cast<SampleLoss*>(a.scratch);
  if (a.batch > 0) {
    with_element(a.type, [&](auto element) {
      using T = typename decltype(element)::type;
      const Batch<T> batch{.batch = a.batch,
                           .classes = static_cast<int>(a.classes),
                           .logits = static_cast<const T*>(a.logits),
                           .labels = a.labels,
                           .weights = a.weights,
                           .shares = a.shares,
                           .label_smoothing = a.label_smoothing,
                           .gradient_scale = a.gradient_scale,
                           .loss_scale = a.loss_scale,
                           .gradient = static_cast<T*>(a.logits_gradient),
                           .losses = losses};
      launch(sample_loss_kernel<T>,
             {.grid = dim3(static_cast<unsigned>(ceil_div(a.batch, kBlockWarps))),
              .block = dim3(kBlockWarps * kWarpThreads)},
             stream, batch);
    });
  }
  sum_losses(stream, a.batch, a.weights, losses, a.sums);
}

void cuda_output_loss(Stream& stream, const OutputLoss& a) {
  check_output_loss(a);
  CHECK(a.classes <= std::numeric_limits<int>::max(),
        "the number of classes is {}, expected at most 2^31 - 1", a.classes);
  auto* losses = static_cast<SampleLoss*>(a.scratch);
  if (a.batch > 0) {
    with_element(a.type, [&](auto element) {
      using T = typename decltype(element)::type;
      with_output_loss(a.loss, [&](auto function) {
        launch(output_loss_kernel<T, decltype(function)>,
               {.grid = dim3(static_cast<unsigned>(ceil_div(a.batch, kBlockWarps))),
                .block = dim3(kBlockWarps * kWarpThreads)},
               stream, a, function, losses);
      });
    });
  }
  sum_losses(stream, a.batch, a.weights, losses, a.sums);
}

}  // namespace lockstep
