// SPDX-License-Identifier: Apache-2.0
//
// One block updates one chunk. Bytes of memory traffic per element, in 16-byte accesses if a chunk is
// aligned: value and each state are read and written (8 each), the gradient is read (4, or 2 in half types),
// the copy is written (2). SGD and LARS: 20 with fp32 gradients, 20 with half gradients and a copy; AdamW: 28
// and 28. The norms of LARS read value and gradient once more (8, 6). An average reads two elements and
// writes one (12), a swap reads and writes two (16).
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/update.h"
#include "kernels/elementwise.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

constexpr int kLanes = 8;

// A rule makes the step of an optimizer for the elements of a segment. One thread of each block calls it.
struct SgdRule {
  using Step = SgdStep;
  float momentum;
  bool nesterov;

  __device__ Step step(const StepControl& control, const UpdateSegment& segment, std::int32_t) const {
    return {.learning_rate = static_cast<float>(control.learning_rate),
            .momentum = momentum,
            .weight_decay = segment.weight_decay,
            .nesterov = nesterov,
            .gradient_has_momentum = segment.gradient_has_momentum};
  }
};

struct AdamWRule {
  using Step = AdamWStep;
  double beta1;
  double beta2;
  double epsilon;

  __device__ Step step(const StepControl& control, const UpdateSegment& segment, std::int32_t) const {
    Step made = AdamWStep::from(AdamWRates{.learning_rate = control.learning_rate,
                                           .beta1 = beta1,
                                           .beta2 = beta2,
                                           .epsilon = epsilon,
                                           .step = control.step});
    made.weight_decay = segment.weight_decay;
    made.penalty = segment.penalty;
    return made;
  }
};

struct LarsRule {
  using Step = LarsStep;
  float momentum;
  const float* trust_ratios;

  __device__ Step step(const StepControl& control, const UpdateSegment& segment, std::int32_t index) const {
    return {.learning_rate = static_cast<float>(control.learning_rate),
            .momentum = momentum,
            .weight_decay = segment.weight_decay,
            .trust_ratio = trust_ratios[index]};
  }
};

struct Table {
  const UpdateChunk* chunks;
  const UpdateSegment* segments;
  const StepControl* control;

  __device__ bool skips() const { return control->finite == 0; }
  __device__ float gradient_factor() const { return lockstep::gradient_factor(*control); }
};

template <typename T>
struct Arrays {
  const T* gradient;
  float* value;
  float* first;
  float* second;  // AdamW only
  void* copy;
  DType copy_type;
  bool state_stays;

  __device__ Arrays from(std::int64_t element) const {
    return {gradient + element,
            value + element,
            first + element,
            second == nullptr ? nullptr : second + element,
            copy == nullptr ? nullptr : static_cast<__half*>(copy) + element,
            copy_type,
            state_stays};
  }
  __device__ bool aligned_all() const { return aligned(gradient, value, first, second, copy); }
};

template <typename Step>
__device__ inline void apply(const Step& step, float& value, float gradient, float& first, float& second) {
  if constexpr (std::is_same_v<Step, AdamWStep>) {
    step(value, gradient, first, second);
  } else {
    step(value, gradient, first);
  }
}

// Updates kCount elements from `at` on: a whole aligned pack, or one element.
template <int kCount, typename Step, typename T>
__device__ inline void update_lanes(const Step& step, float gradient_factor, const Arrays<T>& arrays,
                                    int at) {
  Lanes<kCount> value = load<kCount>(arrays.value + at);
  Lanes<kCount> first = load<kCount>(arrays.first + at);
  Lanes<kCount> second = first;
  if constexpr (std::is_same_v<Step, AdamWStep>) second = load<kCount>(arrays.second + at);
  const Lanes<kCount> gradient = load<kCount>(arrays.gradient + at);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    apply(step, value[i], gradient_factor * gradient[i], first[i], second[i]);
  }
  store(arrays.value + at, value);
  if (!arrays.state_stays) {
    store(arrays.first + at, first);
    if constexpr (std::is_same_v<Step, AdamWStep>) store(arrays.second + at, second);
  }
  if (arrays.copy == nullptr) return;
  if (arrays.copy_type == DType::f16) {
    store(static_cast<__half*>(arrays.copy) + at, value);
  } else {
    store(static_cast<__nv_bfloat16*>(arrays.copy) + at, value);
  }
}

template <typename Rule, typename T>
__global__ void __launch_bounds__(kMostBlockThreads) update_kernel(Table table, Rule rule, Arrays<T> all) {
  using Step = typename Rule::Step;
  alignas(Step) __shared__ unsigned char made[sizeof(Step)];  // shared variables must not have constructors
  if (table.skips()) return;
  const UpdateChunk chunk = table.chunks[blockIdx.x];
  if (threadIdx.x == 0) {
    new (made) Step(rule.step(*table.control, table.segments[chunk.segment], chunk.segment));
  }
  __syncthreads();
  const Step step = *reinterpret_cast<const Step*>(made);
  const float gradient_factor = table.gradient_factor();
  const Arrays<T> arrays = all.from(chunk.begin);
  const bool packed = arrays.aligned_all();
  for (int first = static_cast<int>(threadIdx.x) * kLanes; first < chunk.count;
       first += static_cast<int>(blockDim.x) * kLanes) {
    if (packed && first + kLanes <= chunk.count) {
      update_lanes<kLanes>(step, gradient_factor, arrays, first);
    } else {
#pragma unroll 1
      for (int i = first; i < first + kLanes && i < chunk.count; ++i) {
        update_lanes<1>(step, gradient_factor, arrays, i);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    squared_norms_kernel(Table table, const float* values, const T* gradients, SquaredNorms* norms) {
  if (table.skips()) return;
  const UpdateChunk chunk = table.chunks[blockIdx.x];
  const float gradient_factor = table.gradient_factor();
  const float* value = values + chunk.begin;
  const T* gradient = gradients + chunk.begin;
  const bool packed = aligned(value, gradient);
  SquaredNorms sum;
  const auto add = [&](float v, float g) {
    const double multiplied = static_cast<double>(gradient_factor * g);
    sum.value += static_cast<double>(v) * static_cast<double>(v);
    sum.gradient += multiplied * multiplied;
  };
  for (int first = static_cast<int>(threadIdx.x) * kLanes; first < chunk.count;
       first += kBlockThreads * kLanes) {
    if (packed && first + kLanes <= chunk.count) {
      const Lanes<kLanes> v = load<kLanes>(value + first);
      const Lanes<kLanes> g = load<kLanes>(gradient + first);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) add(v[i], g[i]);
    } else {
      for (int i = first; i < first + kLanes && i < chunk.count; ++i) add(value[i], to_float(gradient[i]));
    }
  }
  const SquaredNorms total{.value = block_sum(sum.value), .gradient = block_sum(sum.gradient)};
  if (threadIdx.x == 0) norms[blockIdx.x] = total;
}

// One warp per segment.
__global__ void __launch_bounds__(kWarpThreads)
    trust_ratio_kernel(Table table, TrustRatio plain, const SquaredNorms* norms, float* trust_ratios) {
  if (table.skips()) return;
  const UpdateSegment segment = table.segments[blockIdx.x];
  if (!segment.adaptive) {
    if (threadIdx.x == 0) trust_ratios[blockIdx.x] = 1;
    return;
  }
  const std::int64_t chunks = ceil_div(segment.count, kUpdateChunk);
  SquaredNorms sum;
  for (std::int64_t i = threadIdx.x; i < chunks; i += kWarpThreads) {
    sum.value += norms[segment.first_chunk + i].value;
    sum.gradient += norms[segment.first_chunk + i].gradient;
  }
  const SquaredNorms total{.value = warp_sum(sum.value), .gradient = warp_sum(sum.gradient)};
  TrustRatio ratio = plain;
  ratio.weight_decay = segment.weight_decay;
  if (threadIdx.x == 0) trust_ratios[blockIdx.x] = ratio(total);
}

Table table_of(const Update& update) {
  CHECK(update.control != nullptr, "Update::control is not set");
  return {.chunks = update.table.chunks().data(),
          .segments = update.table.segments().data(),
          .control = update.control};
}

struct States {
  float* first = nullptr;
  float* second = nullptr;
};

template <typename Rule>
void run(Stream& stream, const Update& update, const Rule& rule, const States& states) {
  const auto chunks = static_cast<unsigned>(update.table.chunks().size());
  if (chunks == 0) return;
  CHECK(update.copy == nullptr || update.copy_type == DType::f16 || update.copy_type == DType::bf16,
        "the copy of the weights has the type {}, expected fp16 or bf16", name_of(update.copy_type));
  with_element(update.gradient_type, [&](auto element) {
    using T = typename decltype(element)::type;
    const Arrays<T> arrays{.gradient = static_cast<const T*>(update.gradient),
                           .value = update.value,
                           .first = states.first,
                           .second = states.second,
                           .copy = update.copy,
                           .copy_type = update.copy_type,
                           .state_stays = update.state_stays};
    launch(update_kernel<Rule, T>,
           {.grid = dim3(chunks), .block = dim3(static_cast<unsigned>(block_threads()))}, stream,
           table_of(update), rule, arrays);
  });
}

// Processes this thread's kLanes elements: calls pack(first) if they are aligned and all exist, else one(i)
// for each.
template <typename Pack, typename One>
__device__ inline void over_lanes(std::int64_t count, bool packed, const Pack& pack, const One& one) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kLanes;
  if (packed && first + kLanes <= count) return pack(first);
  for (std::int64_t i = first; i < first + kLanes && i < count; ++i) one(i);
}

__global__ void __launch_bounds__(kMostBlockThreads) restore_kernel(Restore a) {
  if (a.control->finite != 0) return;
  over_lanes(
      a.count, aligned(a.from, a.to),
      [&](std::int64_t first) { store(a.to + first, load<kLanes>(a.from + first)); },
      [&](std::int64_t i) { a.to[i] = a.from[i]; });
}

__global__ void __launch_bounds__(kMostBlockThreads) average_kernel(AverageUpdate a) {
  if (a.control->finite == 0) return;
  const AverageStep step = AverageStep::from(*a.control, a.decay);
  over_lanes(
      a.count, aligned(a.value, a.average),
      [&](std::int64_t first) {
        const Lanes<kLanes> value = load<kLanes>(a.value + first);
        Lanes<kLanes> average = load<kLanes>(a.average + first);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) step(value[i], average[i]);
        store(a.average + first, average);
      },
      [&](std::int64_t i) { step(a.value[i], a.average[i]); });
}

__global__ void __launch_bounds__(kMostBlockThreads) swap_kernel(ValueSwap a) {
  over_lanes(
      a.count, aligned(a.values, a.others),
      [&](std::int64_t first) {
        const Lanes<kLanes> values = load<kLanes>(a.values + first), others = load<kLanes>(a.others + first);
        store(a.values + first, others);
        store(a.others + first, values);
      },
      [&](std::int64_t i) {
        const float value = a.values[i];
        a.values[i] = a.others[i];
        a.others[i] = value;
      });
}

// The shape for `count` elements, kLanes per thread.
LaunchShape over_elements(std::int64_t count) {
  const int threads = block_threads();
  return {.grid = dim3(static_cast<unsigned>(ceil_div(count, threads * kLanes))),
          .block = dim3(static_cast<unsigned>(threads))};
}

// One warp.
__global__ void __launch_bounds__(kWarpThreads) clip_kernel(GradientClip a) {
  double squares = 0;
  for (unsigned part = threadIdx.x; part < kSquareSums; part += kWarpThreads) squares += a.sums[part];
  squares = warp_sum(squares);
  if (threadIdx.x == 0) a.control->clip = clip_of(squares, a.most_norm, a.control->loss_scale);
}

__global__ void finish_step_kernel(LossScaleRule rule, StepControl* control) { finish_step(rule, *control); }

void run_rule(Stream& stream, const Update& update, const SgdUpdate& sgd) {
  run(stream, update, SgdRule{.momentum = sgd.momentum, .nesterov = sgd.nesterov},
      {.first = sgd.momentum_buffer});
}

void run_rule(Stream& stream, const Update& update, const AdamWUpdate& adamw) {
  run(stream, update, AdamWRule{.beta1 = adamw.beta1, .beta2 = adamw.beta2, .epsilon = adamw.epsilon},
      {.first = adamw.first_moment, .second = adamw.second_moment});
}

void run_rule(Stream& stream, const Update& update, const LarsUpdate& lars) {
  const auto chunks = static_cast<unsigned>(update.table.chunks().size());
  const auto segments = static_cast<unsigned>(update.table.segments().size());
  if (chunks == 0) return;
  CHECK(lars.norms.size() >= chunks && lars.trust_ratios.size() >= segments,
        "LARS has work space for {} chunks and {} segments, needs {} and {}", lars.norms.size(),
        lars.trust_ratios.size(), chunks, segments);
  with_element(update.gradient_type, [&](auto element) {
    using T = typename decltype(element)::type;
    launch(squared_norms_kernel<T>, {.grid = dim3(chunks), .block = dim3(kBlockThreads)}, stream,
           table_of(update), static_cast<const float*>(update.value), static_cast<const T*>(update.gradient),
           lars.norms.data());
  });
  const TrustRatio ratio{.coefficient = lars.trust_coefficient, .epsilon = lars.epsilon};
  launch(trust_ratio_kernel, {.grid = dim3(segments), .block = dim3(kWarpThreads)}, stream, table_of(update),
         ratio, static_cast<const SquaredNorms*>(lars.norms.data()), lars.trust_ratios.data());
  run(stream, update, LarsRule{.momentum = lars.momentum, .trust_ratios = lars.trust_ratios.data()},
      {.first = lars.momentum_buffer});
}

}  // namespace

void cuda_restore_if_skipped(Stream& stream, const Restore& arguments) {
  if (arguments.count > 0) launch(restore_kernel, over_elements(arguments.count), stream, arguments);
}

void cuda_average_values(Stream& stream, const AverageUpdate& arguments) {
  if (arguments.count > 0) launch(average_kernel, over_elements(arguments.count), stream, arguments);
}

void cuda_swap_values(Stream& stream, const ValueSwap& arguments) {
  if (arguments.count > 0) launch(swap_kernel, over_elements(arguments.count), stream, arguments);
}

void cuda_clip_gradients(Stream& stream, const GradientClip& arguments) {
  launch(clip_kernel, {.grid = dim3(1), .block = dim3(kWarpThreads)}, stream, arguments);
}

void cuda_finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control) {
  launch(finish_step_kernel, {.grid = dim3(1), .block = dim3(1)}, stream, rule, control);
}

void cuda_update(Stream& stream, const Update& update, const UpdateRule& rule) {
  std::visit([&](const auto& wanted) { run_rule(stream, update, wanted); }, rule);
}

}  // namespace lockstep
