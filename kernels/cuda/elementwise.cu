// SPDX-License-Identifier: Apache-2.0
//
// Bytes of memory traffic per element, 16 per access: activation forward reads one element and writes one (8
// bytes in fp32, 4 in half types), its backward and add read two and write one (12, 6), scale reads and
// writes one (8, 4), a cast reads and writes the sizes of the two types, all_finite, largest_magnitude and
// sum_squares read one (4, 2).
#include <algorithm>
#include <bit>

#include "kernels/cuda/element.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

template <typename... T>
constexpr int kLanesOf = static_cast<int>(16 / std::min({sizeof(T)...}));

template <typename From, typename To, typename Function>
__global__ void __launch_bounds__(kMostBlockThreads)
    unary_kernel(std::int64_t count, Function function, const From* from, To* to) {
  constexpr int kLanes = kLanesOf<From, To>;
  const std::int64_t first = kLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (first + kLanes <= count && aligned(from, to)) {
    Lanes<kLanes> lanes = load<kLanes>(from + first);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) lanes[i] = function(lanes[i]);
    store(to + first, lanes);
    return;
  }
  for (std::int64_t i = first; i < first + kLanes && i < count; ++i) {
    to[i] = from_float<To>(function(to_float(from[i])));
  }
}

template <typename A, typename T, typename Function>
__global__ void __launch_bounds__(kMostBlockThreads)
    binary_kernel(std::int64_t count, Function function, const A* a, const T* b, T* result) {
  constexpr int kLanes = kLanesOf<A, T>;
  const std::int64_t first = kLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (first + kLanes <= count && aligned(a, b, result)) {
    Lanes<kLanes> lanes = load<kLanes>(a + first);
    const Lanes<kLanes> others = load<kLanes>(b + first);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) lanes[i] = function(lanes[i], others[i]);
    store(result + first, lanes);
    return;
  }
  for (std::int64_t i = first; i < first + kLanes && i < count; ++i) {
    result[i] = from_float<T>(function(to_float(a[i]), to_float(b[i])));
  }
}

__global__ void set_kernel(std::int32_t* flag, std::int32_t value) { *flag = value; }

__device__ inline bool is_finite(float value) { return fabsf(value) <= 3.402823466e38f; }

// A few blocks, each of which loops over many stretches of memory: ending a block costs more than its check.
template <typename T>
__global__ void __launch_bounds__(kMostBlockThreads)
    all_finite_kernel(std::int64_t count, const T* values, std::int32_t* finite) {
  constexpr int kLanes = kLanesOf<T>;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x * kLanes;
  bool found = false;
  for (std::int64_t first = kLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x); first < count;
       first += stride) {
    if (first + kLanes <= count && aligned(values)) {
      const Lanes<kLanes> lanes = load<kLanes>(values + first);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) found |= !is_finite(lanes[i]);
    } else {
      for (std::int64_t i = first; i < first + kLanes && i < count; ++i)
        found |= !is_finite(to_float(values[i]));
    }
  }
  if (__syncthreads_or(found ? 1 : 0) != 0 && threadIdx.x == 0) atomicAnd(finite, 0);
}

template <typename T>
__global__ void __launch_bounds__(kMostBlockThreads)
    largest_magnitude_kernel(std::int64_t count, const T* values, std::int32_t* largest) {
  constexpr int kLanes = kLanesOf<T>;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x * kLanes;
  std::int32_t here = 0;
  const auto take = [&](float value) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(value) & 0x7fffffff;
    here = here > bits ? here : bits;
  };
  for (std::int64_t first = kLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x); first < count;
       first += stride) {
    if (first + kLanes <= count && aligned(values)) {
      const Lanes<kLanes> lanes = load<kLanes>(values + first);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) take(lanes[i]);
    } else {
      for (std::int64_t i = first; i < first + kLanes && i < count; ++i) take(to_float(values[i]));
    }
  }
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const std::int32_t other = __shfl_xor_sync(kWholeWarp, here, distance);
    here = here > other ? here : other;
  }
  if (threadIdx.x % kWarpThreads == 0) atomicMax(largest, here);
}

__global__ void half_scale_kernel(HalfScale a) { choose_half_scale(a); }

// Each block computes one of the kSquareSums parts; block 0 clears the parts that have no block.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    square_sum_kernel(std::int64_t count, const T* values, bool accumulate, double* sums) {
  constexpr int kLanes = kLanesOf<T>;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x * kLanes;
  double sum = 0;
  for (std::int64_t first = kLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x); first < count;
       first += stride) {
    if (first + kLanes <= count && aligned(values)) {
      const Lanes<kLanes> lanes = load<kLanes>(values + first);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) sum += double{lanes[i]} * double{lanes[i]};
    } else {
      for (std::int64_t i = first; i < first + kLanes && i < count; ++i)
        sum += double{to_float(values[i])} * double{to_float(values[i])};
    }
  }
  const double total = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = accumulate ? sums[blockIdx.x] + total : total;
  if (blockIdx.x > 0 || accumulate) return;
  for (unsigned part = gridDim.x + threadIdx.x; part < kSquareSums; part += blockDim.x) sums[part] = 0;
}

struct MultiplyBy {
  const float* factor;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return *factor * x; }
};

// sum + *factor * x
struct AddTimes {
  const float* factor;  // null: 1
  LOCKSTEP_HOST_DEVICE float operator()(float x, float sum) const {
    return factor == nullptr ? sum + x : sum + *factor * x;
  }
};

struct Multiply {
  float factor;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return factor * x; }
};

template <typename Function>
struct GradientOf {
  Function function;
  LOCKSTEP_HOST_DEVICE float operator()(float y, float y_gradient) const {
    return function.gradient(y, y_gradient);
  }
};

LaunchShape cover(std::int64_t count, int lanes) {
  const int threads = block_threads();
  return {.grid = dim3(static_cast<unsigned>(ceil_div(count, std::int64_t{threads} * lanes))),
          .block = dim3(static_cast<unsigned>(threads))};
}

}  // namespace

void cuda_activation_forward(Stream& stream, const ActivationForward& a) {
  if (a.count == 0) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    with_any_activation(a.activation, [&](auto function) {
      launch(unary_kernel<T, T, decltype(function)>, cover(a.count, kLanesOf<T>), stream, a.count, function,
             static_cast<const T*>(a.x), static_cast<T*>(a.y));
    });
  });
}

void cuda_activation_backward(Stream& stream, const ActivationBackward& a) {
  if (a.count == 0) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    with_any_activation(a.activation, [&](auto function) {
      using Gradient = GradientOf<decltype(function)>;
      launch(binary_kernel<T, T, Gradient>, cover(a.count, kLanesOf<T>), stream, a.count, Gradient{function},
             static_cast<const T*>(a.y), static_cast<const T*>(a.y_gradient), static_cast<T*>(a.x_gradient));
    });
  });
}

void cuda_add(Stream& stream, const Addition& a) {
  if (a.count == 0) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    launch(binary_kernel<T, T, Add>, cover(a.count, kLanesOf<T>), stream, a.count, Add(),
           static_cast<const T*>(a.a), static_cast<const T*>(a.b), static_cast<T*>(a.sum));
  });
}

void cuda_scale(Stream& stream, const Scaling& a) {
  if (a.count == 0) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    launch(unary_kernel<T, T, Multiply>, cover(a.count, kLanesOf<T>), stream, a.count, Multiply{a.factor},
           static_cast<const T*>(a.values), static_cast<T*>(a.values));
  });
}

void cuda_cast(Stream& stream, const Cast& a) {
  if (a.count == 0) return;
  CHECK(a.from != a.to || size_of(a.from_type) == size_of(a.to_type),
        "an in-place cast requires types of equal size, not {} and {}", name_of(a.from_type),
        name_of(a.to_type));
  with_element(a.from_type, [&](auto from) {
    using From = typename decltype(from)::type;
    with_element(a.to_type, [&](auto to) {
      using To = typename decltype(to)::type;
      const auto* source = static_cast<const From*>(a.from);
      auto* target = static_cast<To*>(a.to);
      const LaunchShape shape = cover(a.count, kLanesOf<From, To>);
      if (a.write == Write::accumulate) {
        launch(binary_kernel<From, To, AddTimes>, shape, stream, a.count, AddTimes{a.factor}, source,
               static_cast<const To*>(target), target);
      } else if (a.factor == nullptr) {
        launch(unary_kernel<From, To, Identity>, shape, stream, a.count, Identity(), source, target);
      } else {
        launch(unary_kernel<From, To, MultiplyBy>, shape, stream, a.count, MultiplyBy{a.factor}, source,
               target);
      }
    });
  });
}

void cuda_all_finite(Stream& stream, const FiniteCheck& a) {
  if (a.write == Write::overwrite) {
    launch(set_kernel, {.grid = dim3(1), .block = dim3(1)}, stream, a.finite, 1);
  }
  if (a.count == 0) return;
  const auto most_blocks = static_cast<unsigned>(enough_blocks(stream.device()));
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    LaunchShape shape = cover(a.count, kLanesOf<T>);
    shape.grid.x = std::min(shape.grid.x, most_blocks);
    launch(all_finite_kernel<T>, shape, stream, a.count, static_cast<const T*>(a.values), a.finite);
  });
}

void cuda_largest_magnitude(Stream& stream, const LargestMagnitude& a) {
  launch(set_kernel, {.grid = dim3(1), .block = dim3(1)}, stream, a.largest, 0);
  if (a.count == 0) return;
  const auto most_blocks = static_cast<unsigned>(enough_blocks(stream.device()));
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    LaunchShape shape = cover(a.count, kLanesOf<T>);
    shape.grid.x = std::min(shape.grid.x, most_blocks);
    launch(largest_magnitude_kernel<T>, shape, stream, a.count, static_cast<const T*>(a.values), a.largest);
  });
}

void cuda_half_scale(Stream& stream, const HalfScale& a) {
  launch(half_scale_kernel, {.grid = dim3(1), .block = dim3(1)}, stream, a);
}

void cuda_sum_squares(Stream& stream, const SquareSum& a) {
  if (a.count == 0 && a.write == Write::accumulate) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    // Not block_threads(): the size of a block decides the order of the sum.
    const std::int64_t blocks = std::clamp<std::int64_t>(
        ceil_div(a.count, std::int64_t{kBlockThreads} * kLanesOf<T>), 1, kSquareSums);
    launch(square_sum_kernel<T>, {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kBlockThreads)},
           stream, a.count, static_cast<const T*>(a.values), a.write == Write::accumulate, a.sums);
  });
}

}  // namespace lockstep
