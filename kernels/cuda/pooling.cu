// SPDX-License-Identifier: Apache-2.0
//
// Bytes, in 16-byte accesses where the channels are whole packs of them: forward reads each input element
// once from memory (windows that overlap, from the cache) and writes each output element, with one byte more
// for its place when training; backward reads each output gradient, with its place, and writes each input
// gradient. For 3x3 windows of stride 2 in half types: 2.75 bytes per input element forward, 2.75 backward.
#include <limits>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pooling.h"

namespace lockstep {
namespace {

constexpr std::int64_t kByteWindow = 256;

// Blocks of kMostBlockThreads that a multiprocessor must hold. Left to itself ptxas makes room for a third,
// with 40 registers for each thread, and keeps in memory what does not fit.
constexpr int kBlocks = 2;

// CudaPooling in the widths that kernels compute with.
struct Windows {
  unsigned channels;
  int height, width;
  int out_height, out_width;
  int kernel_height, kernel_width;
  int stride, padding;
};

// Where a pack of channels lies.
struct Place {
  unsigned channel;
  int column;
  int row;
  unsigned sample;

  __device__ static Place of(unsigned pack, unsigned channel_packs, unsigned width, unsigned height,
                             int lanes) {
    const unsigned pixel = pack / channel_packs;
    const unsigned line = pixel / width;
    return {.channel = pack % channel_packs * static_cast<unsigned>(lanes),
            .column = static_cast<int>(pixel % width),
            .row = static_cast<int>(line % height),
            .sample = line / height};
  }
};

// The range of one dimension that two intervals share.
struct Range {
  int begin;
  int end;
};
// Input places of output o.
__device__ inline Range inputs_of(int o, int stride, int padding, int kernel, int size) {
  const int begin = o * stride - padding;
  return {max(begin, 0), min(begin + kernel, size)};
}
// Outputs whose window holds input place i.
__device__ inline Range outputs_of(int i, int stride, int padding, int kernel, int out_size) {
  const int last_start = i + padding;
  const int first_start = last_start - kernel + 1;
  return {first_start <= 0 ? 0 : (first_start + stride - 1) / stride, min(last_start / stride + 1, out_size)};
}

__device__ inline std::int64_t offset(const Windows& w, unsigned sample, int height, int width, int row,
                                      int column, unsigned channel) {
  return ((std::int64_t{sample} * height + row) * width + column) * w.channels + channel;
}

template <int kLanes, typename Saved, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    max_forward_kernel(unsigned packs, Windows w, const T* x, T* y, Saved* saved) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place out = Place::of(pack, w.channels / kLanes, w.out_width, w.out_height, kLanes);
  const Range rows = inputs_of(out.row, w.stride, w.padding, w.kernel_height, w.height);
  const Range columns = inputs_of(out.column, w.stride, w.padding, w.kernel_width, w.width);
  const int top = out.row * w.stride - w.padding;
  const int left = out.column * w.stride - w.padding;
  Lanes<kLanes> largest = {};
  Pack<Saved, kLanes> places = {};
  bool first = true;
  for (int row = rows.begin; row < rows.end; ++row) {
    for (int column = columns.begin; column < columns.end; ++column) {
      const Lanes<kLanes> values =
          load<kLanes>(x + offset(w, out.sample, w.height, w.width, row, column, out.channel));
      const auto place = static_cast<Saved>((row - top) * w.kernel_width + column - left);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        if (first || values[i] > largest[i] || values[i] != values[i]) {
          largest[i] = values[i];
          places.elements[i] = place;
        }
      }
      first = false;
    }
  }
  store(y + std::int64_t{pack} * kLanes, largest);
  if (saved != nullptr) *reinterpret_cast<Pack<Saved, kLanes>*>(saved + std::int64_t{pack} * kLanes) = places;
}

template <int kLanes, typename Saved, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    max_backward_kernel(unsigned packs, Windows w, const T* y_gradient, const Saved* saved, T* x_gradient) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place in = Place::of(pack, w.channels / kLanes, w.width, w.height, kLanes);
  const Range rows = outputs_of(in.row, w.stride, w.padding, w.kernel_height, w.out_height);
  const Range columns = outputs_of(in.column, w.stride, w.padding, w.kernel_width, w.out_width);
  Lanes<kLanes> sum = {};
  for (int row = rows.begin; row < rows.end; ++row) {
    for (int column = columns.begin; column < columns.end; ++column) {
      const std::int64_t at = offset(w, in.sample, w.out_height, w.out_width, row, column, in.channel);
      const auto places = *reinterpret_cast<const Pack<Saved, kLanes>*>(saved + at);
      const Lanes<kLanes> gradients = load<kLanes>(y_gradient + at);
      const int here = (in.row - (row * w.stride - w.padding)) * w.kernel_width + in.column -
                       (column * w.stride - w.padding);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        if (static_cast<int>(places.elements[i]) == here) sum[i] += gradients[i];
      }
    }
  }
  store(x_gradient + std::int64_t{pack} * kLanes, sum);
}

template <int kLanes, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    average_forward_kernel(unsigned packs, Windows w, const T* x, T* y) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place out = Place::of(pack, w.channels / kLanes, w.out_width, w.out_height, kLanes);
  const Range rows = inputs_of(out.row, w.stride, w.padding, w.kernel_height, w.height);
  const Range columns = inputs_of(out.column, w.stride, w.padding, w.kernel_width, w.width);
  Lanes<kLanes> sum = {};
  for (int row = rows.begin; row < rows.end; ++row) {
    for (int column = columns.begin; column < columns.end; ++column) {
      const Lanes<kLanes> values =
          load<kLanes>(x + offset(w, out.sample, w.height, w.width, row, column, out.channel));
#pragma unroll
      for (int i = 0; i < kLanes; ++i) sum[i] += values[i];
    }
  }
  const auto count = static_cast<float>((rows.end - rows.begin) * (columns.end - columns.begin));
#pragma unroll
  for (int i = 0; i < kLanes; ++i) sum[i] /= count;
  store(y + std::int64_t{pack} * kLanes, sum);
}

template <int kLanes, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    average_backward_kernel(unsigned packs, Windows w, const T* y_gradient, T* x_gradient) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place in = Place::of(pack, w.channels / kLanes, w.width, w.height, kLanes);
  const Range rows = outputs_of(in.row, w.stride, w.padding, w.kernel_height, w.out_height);
  const Range columns = outputs_of(in.column, w.stride, w.padding, w.kernel_width, w.out_width);
  Lanes<kLanes> sum = {};
  for (int row = rows.begin; row < rows.end; ++row) {
    const Range window_rows = inputs_of(row, w.stride, w.padding, w.kernel_height, w.height);
    for (int column = columns.begin; column < columns.end; ++column) {
      const Range window_columns = inputs_of(column, w.stride, w.padding, w.kernel_width, w.width);
      const auto count = static_cast<float>((window_rows.end - window_rows.begin) *
                                            (window_columns.end - window_columns.begin));
      const Lanes<kLanes> gradients =
          load<kLanes>(y_gradient + offset(w, in.sample, w.out_height, w.out_width, row, column, in.channel));
#pragma unroll
      for (int i = 0; i < kLanes; ++i) sum[i] += gradients[i] / count;
    }
  }
  store(x_gradient + std::int64_t{pack} * kLanes, sum);
}

Windows windows_of(const CudaPooling& p) {
  return {.channels = static_cast<unsigned>(p.channels),
          .height = static_cast<int>(p.height),
          .width = static_cast<int>(p.width),
          .out_height = static_cast<int>(p.out_height),
          .out_width = static_cast<int>(p.out_width),
          .kernel_height = static_cast<int>(p.kernel_height),
          .kernel_width = static_cast<int>(p.kernel_width),
          .stride = static_cast<int>(p.stride),
          .padding = static_cast<int>(p.padding)};
}

bool has_wide_places(const CudaPooling& p) { return p.kernel_height * p.kernel_width > kByteWindow; }

// A thread for each pack of channels of a tensor of this many elements.
struct Packs {
  unsigned count;
  LaunchShape shape;

  Packs(std::int64_t elements, int lanes) {
    const std::int64_t packs = elements / lanes;
    CHECK(packs <= std::numeric_limits<std::int32_t>::max(), "pooling of {} elements in packs of {}",
          elements, lanes);
    count = static_cast<unsigned>(packs);
    const int threads = block_threads();
    shape = {.grid = dim3(static_cast<unsigned>(ceil_div(packs, threads))),
             .block = dim3(static_cast<unsigned>(threads))};
  }
};

// function(std::type_identity<T>, std::integral_constant<int, elements of a pack>)
template <typename F>
void with_packs(const CudaPooling& p, bool aligned_memory, F function) {
  with_element(p.type, [&](auto element) {
    constexpr int kLanes = static_cast<int>(16 / sizeof(typename decltype(element)::type));
    if (aligned_memory && p.channels % kLanes == 0) {
      function(element, std::integral_constant<int, kLanes>());
    } else {
      function(element, std::integral_constant<int, 1>());
    }
  });
}

template <typename F>
void with_places(const CudaPooling& p, F function) {
  if (has_wide_places(p)) return function(std::type_identity<std::int32_t>());
  return function(std::type_identity<std::uint8_t>());
}

}  // namespace

CudaPooling CudaPooling::from(const PoolingOptions& o, DType type, const Shape& input) {
  return {.kind = o.kind,
          .type = type,
          .batch = input[0],
          .channels = input[1],
          .height = input[2],
          .width = input[3],
          .out_height = o.out_size(input[2]),
          .out_width = o.out_size(input[3]),
          .kernel_height = o.global ? input[2] : o.kernel,
          .kernel_width = o.global ? input[3] : o.kernel,
          .stride = o.global ? 1 : o.stride,
          .padding = o.global ? 0 : o.padding};
}

std::size_t CudaPooling::saved_bytes() const {
  if (kind == PoolingKind::average) return 0;
  return static_cast<std::size_t>(batch * out_height * out_width * channels) *
         (has_wide_places(*this) ? 4 : 1);
}

void cuda_pooling_forward(Stream& stream, const CudaPooling& p, const void* x, void* y, void* saved) {
  const std::int64_t elements = p.batch * p.out_height * p.out_width * p.channels;
  if (elements == 0) return;
  with_packs(p, aligned(x, y, saved), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Packs packs(elements, kLanes);
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(y);
    if (p.kind == PoolingKind::average) {
      launch(average_forward_kernel<kLanes, T>, packs.shape, stream, packs.count, windows_of(p), from, to);
      return;
    }
    with_places(p, [&](auto place) {
      using Saved = typename decltype(place)::type;
      launch(max_forward_kernel<kLanes, Saved, T>, packs.shape, stream, packs.count, windows_of(p), from, to,
             static_cast<Saved*>(saved));
    });
  });
}

void cuda_pooling_backward(Stream& stream, const CudaPooling& p, const CudaPoolingBackward& b) {
  CHECK(p.kind == PoolingKind::average || b.saved != nullptr,
        "max pooling needs the places its forward found");
  const std::int64_t elements = p.batch * p.height * p.width * p.channels;
  if (elements == 0) return;
  with_packs(p, aligned(b.y_gradient, b.saved, b.x_gradient), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Packs packs(elements, kLanes);
    const auto* from = static_cast<const T*>(b.y_gradient);
    auto* to = static_cast<T*>(b.x_gradient);
    if (p.kind == PoolingKind::average) {
      launch(average_backward_kernel<kLanes, T>, packs.shape, stream, packs.count, windows_of(p), from, to);
      return;
    }
    with_places(p, [&](auto place) {
      using Saved = typename decltype(place)::type;
      launch(max_backward_kernel<kLanes, Saved, T>, packs.shape, stream, packs.count, windows_of(p), from,
             static_cast<const Saved*>(b.saved), to);
    });
  });
}

}  // namespace lockstep
