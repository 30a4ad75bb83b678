// SPDX-License-Identifier: Apache-2.0
//
// Memory traffic, in 16-byte accesses if the number of channels is a multiple of a pack: forward reads each
// input element once from memory (overlapping windows read the cache) and writes each output element and, in
// training, one byte for its position; backward reads each output gradient and its position, and writes each
// input gradient. For 3x3 windows with stride 2 in half types: 2.75 bytes per input element forward, 2.75
// backward.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pooling.h"

namespace lockstep {
namespace {

constexpr std::int64_t kByteWindow = 256;

// Blocks of kMostBlockThreads that a multiprocessor must hold. By default ptxas makes room for a third block
// with 40 registers per thread, and spills.
constexpr int kBlocks = 2;

// Number of window positions that a thread reads before it uses the first one: as many as fit into registers.
// The thread then waits once for all of them.
constexpr int kMaxInputsAtOnce = 3, kAverageInputsAtOnce = 9, kOutputsAtOnce = 2;

// Divides by a number that is only known at run time, with a multiplication (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994). For dividends below 2^31.
struct Divisor {
  unsigned by = 1, multiplier = 0, shift = 0;

  static Divisor of(std::int64_t by) {
    const unsigned shift = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(by - 1)));
    const std::uint64_t multiplier =
        ((std::uint64_t{1} << (31 + shift)) + static_cast<std::uint64_t>(by) - 1) /
        static_cast<std::uint64_t>(by);
    return {static_cast<unsigned>(by), static_cast<unsigned>(multiplier), shift};
  }
  __device__ unsigned quotient(unsigned dividend) const {
    return static_cast<unsigned>((std::uint64_t{dividend} * multiplier) >> (31 + shift));
  }
};

// CudaPooling in the integer types that kernels compute with.
struct Windows {
  unsigned channels;
  int height, width;
  int out_height, out_width;
  int kernel_height, kernel_width;
  int stride, padding;
  Divisor by_packs, by_width, by_height, by_stride;  // of the tensor that has one thread per pack
};

// The position of a pack of channels.
struct Place {
  unsigned channel;
  int column;
  int row;
  unsigned sample;

  __device__ static Place of(unsigned pack, const Windows& w, int lanes) {
    const unsigned pixel = w.by_packs.quotient(pack);
    const unsigned line = w.by_width.quotient(pixel);
    const unsigned sample = w.by_height.quotient(line);
    return {.channel = (pack - pixel * w.by_packs.by) * static_cast<unsigned>(lanes),
            .column = static_cast<int>(pixel - line * w.by_width.by),
            .row = static_cast<int>(line - sample * w.by_height.by),
            .sample = sample};
  }
};

// A range [begin, end) of one dimension.
struct Range {
  int begin;
  int end;

  __device__ int count() const { return max(end - begin, 0); }
};
// The input positions of output position o.
__device__ inline Range inputs_of(int o, int stride, int padding, int kernel, int size) {
  const int begin = o * stride - padding;
  return {max(begin, 0), min(begin + kernel, size)};
}
// The output positions whose windows contain input position i.
__device__ inline Range outputs_of(int i, const Windows& w, int kernel, int out_size) {
  const int last_start = i + w.padding;
  const int first_start = last_start - kernel + 1;
  const auto quotient = [&](int start) {
    return static_cast<int>(w.by_stride.quotient(static_cast<unsigned>(start)));
  };
  return {first_start <= 0 ? 0 : quotient(first_start + w.stride - 1),
          min(quotient(last_start) + 1, out_size)};
}

// All pixels of one sample, for the channels of one pack.
template <typename T>
struct Plane {
  const T* data;
  int width;
  int channels;

  __device__ Plane(const T* tensor, const Windows& w, const Place& place, int rows, int columns)
      : data(tensor + std::int64_t{place.sample} * rows * columns * w.channels + place.channel),
        width(columns),
        channels(static_cast<int>(w.channels)) {}
  __device__ const T* at(int row, int column) const { return data + (row * width + column) * channels; }
};

// A position in a window, which advances row by row.
struct Cursor {
  const Range& columns;
  int row, column;

  __device__ void advance() {
    if (++column < columns.end) return;
    column = columns.begin;
    ++row;
  }
};

// Calls use(row, column, read(row, column)) for each position, in order. Reads kAtOnce positions before it
// uses the first of them.
template <int kAtOnce, typename Given, typename Read, typename Use>
__device__ inline void for_places(const Range& rows, const Range& columns, Read read, Use use) {
  Cursor ahead{columns, rows.begin, columns.begin};
  const int count = rows.count() * columns.count();
  for (int first = 0; first < count; first += kAtOnce) {
    Cursor behind = ahead;
    Given given[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i, ahead.advance())
      if (first + i < count) given[i] = read(ahead.row, ahead.column);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i, behind.advance())
      if (first + i < count) use(behind.row, behind.column, given[i]);
  }
}

template <int kLanes, typename Saved, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    max_forward_kernel(unsigned packs, Windows w, const T* x, T* y, Saved* saved) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place out = Place::of(pack, w, kLanes);
  const Range rows = inputs_of(out.row, w.stride, w.padding, w.kernel_height, w.height);
  const Range columns = inputs_of(out.column, w.stride, w.padding, w.kernel_width, w.width);
  const Plane<T> inputs(x, w, out, w.height, w.width);
  const int top = out.row * w.stride - w.padding;
  const int left = out.column * w.stride - w.padding;
  Lanes<kLanes> largest = {};
  Pack<Saved, kLanes> places = {};
  bool first = true;
  for_places<kMaxInputsAtOnce, Pack<T, kLanes>>(
      rows, columns, [&](int row, int column) { return load_pack<kLanes>(inputs.at(row, column)); },
      [&](int row, int column, const Pack<T, kLanes>& given) {
        const Lanes<kLanes> values = to_lanes(given);
        const auto place = static_cast<Saved>((row - top) * w.kernel_width + column - left);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          if (first || values[i] > largest[i] || values[i] != values[i]) {
            largest[i] = values[i];
            places.elements[i] = place;
          }
        }
        first = false;
      });
  store(y + std::int64_t{pack} * kLanes, largest);
  if (saved != nullptr) *reinterpret_cast<Pack<Saved, kLanes>*>(saved + std::int64_t{pack} * kLanes) = places;
}

template <int kLanes, typename Saved, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    max_backward_kernel(unsigned packs, Windows w, const T* y_gradient, const Saved* saved, T* x_gradient) {
  struct Output {
    Pack<T, kLanes> gradients;
    Pack<Saved, kLanes> places;
  };
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place in = Place::of(pack, w, kLanes);
  const Range rows = outputs_of(in.row, w, w.kernel_height, w.out_height);
  const Range columns = outputs_of(in.column, w, w.kernel_width, w.out_width);
  const Plane<T> gradients(y_gradient, w, in, w.out_height, w.out_width);
  const Plane<Saved> found(saved, w, in, w.out_height, w.out_width);
  Lanes<kLanes> sum = {};
  for_places<kOutputsAtOnce, Output>(
      rows, columns,
      [&](int row, int column) -> Output {
        return {load_pack<kLanes>(gradients.at(row, column)), load_pack<kLanes>(found.at(row, column))};
      },
      [&](int row, int column, const Output& given) {
        const Lanes<kLanes> values = to_lanes(given.gradients);
        const int here = (in.row - (row * w.stride - w.padding)) * w.kernel_width + in.column -
                         (column * w.stride - w.padding);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          if (static_cast<int>(given.places.elements[i]) == here) sum[i] += values[i];
        }
      });
  store(x_gradient + std::int64_t{pack} * kLanes, sum);
}

template <int kLanes, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    average_forward_kernel(unsigned packs, Windows w, const T* x, T* y) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place out = Place::of(pack, w, kLanes);
  const Range rows = inputs_of(out.row, w.stride, w.padding, w.kernel_height, w.height);
  const Range columns = inputs_of(out.column, w.stride, w.padding, w.kernel_width, w.width);
  const Plane<T> inputs(x, w, out, w.height, w.width);
  Lanes<kLanes> sum = {};
  for_places<kAverageInputsAtOnce, Pack<T, kLanes>>(
      rows, columns, [&](int row, int column) { return load_pack<kLanes>(inputs.at(row, column)); },
      [&](int, int, const Pack<T, kLanes>& given) {
        const Lanes<kLanes> values = to_lanes(given);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) sum[i] += values[i];
      });
  const auto count = static_cast<float>(rows.count() * columns.count());
#pragma unroll
  for (int i = 0; i < kLanes; ++i) sum[i] /= count;
  store(y + std::int64_t{pack} * kLanes, sum);
}

template <int kLanes, typename T>
__global__ void __launch_bounds__(kMostBlockThreads, kBlocks)
    average_backward_kernel(unsigned packs, Windows w, const T* y_gradient, T* x_gradient) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Place in = Place::of(pack, w, kLanes);
  const Range rows = outputs_of(in.row, w, w.kernel_height, w.out_height);
  const Range columns = outputs_of(in.column, w, w.kernel_width, w.out_width);
  const Plane<T> gradients(y_gradient, w, in, w.out_height, w.out_width);
  Lanes<kLanes> sum = {};
  for_places<kOutputsAtOnce, Pack<T, kLanes>>(
      rows, columns, [&](int row, int column) { return load_pack<kLanes>(gradients.at(row, column)); },
      [&](int row, int column, const Pack<T, kLanes>& given) {
        const Range window_rows = inputs_of(row, w.stride, w.padding, w.kernel_height, w.height);
        const Range window_columns = inputs_of(column, w.stride, w.padding, w.kernel_width, w.width);
        const auto count = static_cast<float>(window_rows.count() * window_columns.count());
        const Lanes<kLanes> values = to_lanes(given);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) sum[i] += values[i] / count;
      });
  store(x_gradient + std::int64_t{pack} * kLanes, sum);
}

// width and height: of the tensor that has one thread per pack.
Windows windows_of(const CudaPooling& p, int lanes, std::int64_t width, std::int64_t height) {
  // Padding can make the output larger than the input. Plane computes offsets in either as int.
  const std::int64_t pixels = std::max(p.height * p.width, p.out_height * p.out_width);
  CHECK(pixels * p.channels <= std::numeric_limits<std::int32_t>::max(),
        "pooling: samples of {} channels and {} pixels exceed the limit of 2^31 - 1 elements", p.channels,
        pixels);
  return {.channels = static_cast<unsigned>(p.channels),
          .height = static_cast<int>(p.height),
          .width = static_cast<int>(p.width),
          .out_height = static_cast<int>(p.out_height),
          .out_width = static_cast<int>(p.out_width),
          .kernel_height = static_cast<int>(p.kernel_height),
          .kernel_width = static_cast<int>(p.kernel_width),
          .stride = static_cast<int>(p.stride),
          .padding = static_cast<int>(p.padding),
          .by_packs = Divisor::of(p.channels / lanes),
          .by_width = Divisor::of(width),
          .by_height = Divisor::of(height),
          .by_stride = Divisor::of(p.stride)};
}

bool has_wide_places(const CudaPooling& p) { return p.kernel_height * p.kernel_width > kByteWindow; }

// One thread per pack of channels, for a tensor of this many elements.
struct Packs {
  unsigned count;
  LaunchShape shape;

  Packs(std::int64_t elements, int lanes) {
    const std::int64_t packs = elements / lanes;
    CHECK(packs <= std::numeric_limits<std::int32_t>::max(),
          "pooling: {} elements in packs of {} exceed the limit of 2^31 - 1 packs", elements, lanes);
    count = static_cast<unsigned>(packs);
    const int threads = block_threads();
    shape = {.grid = dim3(static_cast<unsigned>(ceil_div(packs, threads))),
             .block = dim3(static_cast<unsigned>(threads))};
  }
};

// Calls function(std::type_identity<T>, std::integral_constant<int, elements of a pack>).
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
    const Windows windows = windows_of(p, kLanes, p.out_width, p.out_height);
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(y);
    if (p.kind == PoolingKind::average) {
      launch(average_forward_kernel<kLanes, T>, packs.shape, stream, packs.count, windows, from, to);
      return;
    }
    with_places(p, [&](auto place) {
      using Saved = typename decltype(place)::type;
      launch(max_forward_kernel<kLanes, Saved, T>, packs.shape, stream, packs.count, windows, from, to,
             static_cast<Saved*>(saved));
    });
  });
}

void cuda_pooling_backward(Stream& stream, const CudaPooling& p, const CudaPoolingBackward& b) {
  CHECK(p.kind == PoolingKind::average || b.saved != nullptr,
        "backward of max pooling needs the memory that forward saved");
  const std::int64_t elements = p.batch * p.height * p.width * p.channels;
  if (elements == 0) return;
  with_packs(p, aligned(b.y_gradient, b.saved, b.x_gradient), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Packs packs(elements, kLanes);
    const Windows windows = windows_of(p, kLanes, p.width, p.height);
    const auto* from = static_cast<const T*>(b.y_gradient);
    auto* to = static_cast<T*>(b.x_gradient);
    if (p.kind == PoolingKind::average) {
      launch(average_backward_kernel<kLanes, T>, packs.shape, stream, packs.count, windows, from, to);
      return;
    }
    with_places(p, [&](auto place) {
      using Saved = typename decltype(place)::type;
      launch(max_backward_kernel<kLanes, Saved, T>, packs.shape, stream, packs.count, windows, from,
             static_cast<const Saved*>(b.saved), to);
    });
  });
}

}  // namespace lockstep
