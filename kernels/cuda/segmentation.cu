// SPDX-License-Identifier: Apache-2.0
//
// Upsampling, concatenation and separation copy elements in words of 16 bytes where channels allow it; each
// is read and written once. The gradient of upsampling reads factor * factor elements for each one that it
// writes, one at a time: adjacent threads read adjacent channels. The targets of pixels read one byte twice
// and write 8.
#include <algorithm>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/segmentation.h"

namespace lockstep {
namespace {

LaunchShape over(std::int64_t count) {
  const int threads = block_threads();
  return {.grid = dim3(static_cast<unsigned>(ceil_div(count, threads))),
          .block = dim3(static_cast<unsigned>(threads))};
}

__device__ inline std::int64_t thread_index() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

// s.inner is in words.
template <typename Word>
__global__ void __launch_bounds__(kMostBlockThreads)
    upsample_kernel(UpsamplingShape s, std::int64_t count, const Word* x, Word* y) {
  const std::int64_t i = thread_index();
  if (i < count) y[i] = x[s.source(i)];
}

template <typename T>
__global__ void __launch_bounds__(kMostBlockThreads)
    upsample_gradient_kernel(UpsamplingShape s, std::int64_t count, const T* y_gradient, T* x_gradient) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  const T* from = y_gradient + s.first(i);
  const std::int64_t row = s.width * s.factor * s.inner;
  float sum = 0;
  for (std::int64_t down = 0; down < s.factor; ++down)
    for (std::int64_t right = 0; right < s.factor; ++right)
      sum += to_float(from[down * row + right * s.inner]);
  x_gradient[i] = from_float<T>(sum);
}

// a and b: words of a row.
template <typename Word>
__global__ void __launch_bounds__(kMostBlockThreads)
    concatenate_kernel(std::int64_t count, std::int64_t a, std::int64_t b, const Word* from_a,
                       const Word* from_b, Word* joined) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  const std::int64_t row = i / (a + b), column = i % (a + b);
  joined[i] = column < a ? from_a[row * a + column] : from_b[row * b + column - a];
}

template <typename Word>
__global__ void __launch_bounds__(kMostBlockThreads)
    separate_kernel(std::int64_t count, std::int64_t a, std::int64_t b, const Word* joined, Word* to_a,
                    Word* to_b) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  const std::int64_t row = i / (a + b), column = i % (a + b);
  Word* to = column < a ? to_a : to_b;
  if (to != nullptr) to[column < a ? row * a + column : row * b + column - a] = joined[i];
}

// One block for each image.
__global__ void __launch_bounds__(kBlockThreads) pixel_targets_kernel(PixelTargets t) {
  const std::int64_t first = std::int64_t{blockIdx.x} * t.pixels;
  std::int64_t mine = 0;
  for (std::int64_t i = threadIdx.x; i < t.pixels; i += kBlockThreads)
    mine += t.masks[first + i] == kIgnoredPixel ? 0 : 1;
  const std::int64_t counted = block_sum(mine);
  const float weight = t.weights[blockIdx.x];
  const float each = weight == 0 || counted == 0 ? 0.0f
                     : t.share_weight            ? weight / static_cast<float>(counted)
                                                 : 1.0f;
  for (std::int64_t i = threadIdx.x; i < t.pixels; i += kBlockThreads) {
    const std::uint8_t value = t.masks[first + i];
    const bool ignored = value == kIgnoredPixel;
    t.labels[first + i] = ignored ? 0 : value;
    t.pixel_weights[first + i] = ignored ? 0.0f : each;
  }
}

// Calls function(Word(), elements of a word) with the widest word that divides runs of `elements` elements at
// these addresses.
template <typename F, typename... P>
void with_word(DType type, std::int64_t elements, F&& function, const P*... pointers) {
  const auto bytes = static_cast<std::int64_t>(size_of(type));
  if (elements * bytes % 16 == 0 && aligned(pointers...)) return function(uint4{}, 16 / bytes);
  if (bytes == 4) return function(std::uint32_t{}, std::int64_t{1});
  function(std::uint16_t{}, std::int64_t{1});
}

// Calls function(Word(), words of the result, words of a row of a, of b), if there are any.
template <typename F, typename... P>
void with_rows(const ConcatenationShape& s, F&& function, const P*... pointers) {
  if (s.rows * (s.a_elements + s.b_elements) == 0) return;
  with_word(
      s.type, s.a_elements | s.b_elements,
      [&](auto word, std::int64_t elements) {
        const std::int64_t of_a = s.a_elements / elements, of_b = s.b_elements / elements;
        function(word, s.rows * (of_a + of_b), of_a, of_b);
      },
      pointers...);
}

}  // namespace

void cuda_upsample_forward(Stream& stream, const UpsamplingForward& a) {
  if (a.shape.small_elements() == 0) return;
  with_word(
      a.shape.type, a.shape.inner,
      [&](auto word, std::int64_t elements) {
        using Word = decltype(word);
        UpsamplingShape words = a.shape;
        words.inner /= elements;
        const std::int64_t count = words.small_elements() * words.factor * words.factor;
        launch(upsample_kernel<Word>, over(count), stream, words, count, static_cast<const Word*>(a.x),
               static_cast<Word*>(a.y));
      },
      a.x, a.y);
}

void cuda_upsample_backward(Stream& stream, const UpsamplingBackward& a) {
  if (a.shape.small_elements() == 0) return;
  with_element(a.shape.type, [&](auto element) {
    using T = typename decltype(element)::type;
    const std::int64_t count = a.shape.small_elements();
    launch(upsample_gradient_kernel<T>, over(count), stream, a.shape, count,
           static_cast<const T*>(a.y_gradient), static_cast<T*>(a.x_gradient));
  });
}

void cuda_concatenate(Stream& stream, const Concatenation& a) {
  with_rows(
      a.shape,
      [&](auto word, std::int64_t count, std::int64_t of_a, std::int64_t of_b) {
        using Word = decltype(word);
        launch(concatenate_kernel<Word>, over(count), stream, count, of_a, of_b,
               static_cast<const Word*>(a.a), static_cast<const Word*>(a.b), static_cast<Word*>(a.joined));
      },
      a.a, a.b, a.joined);
}

void cuda_separate(Stream& stream, const Separation& a) {
  with_rows(
      a.shape,
      [&](auto word, std::int64_t count, std::int64_t of_a, std::int64_t of_b) {
        using Word = decltype(word);
        launch(separate_kernel<Word>, over(count), stream, count, of_a, of_b,
               static_cast<const Word*>(a.joined), static_cast<Word*>(a.a), static_cast<Word*>(a.b));
      },
      a.a, a.b, a.joined);
}

void cuda_pixel_targets(Stream& stream, const PixelTargets& a) {
  if (a.batch * a.pixels == 0) return;
  launch(pixel_targets_kernel, {.grid = dim3(static_cast<unsigned>(a.batch)), .block = dim3(kBlockThreads)},
         stream, a);
}

}  // namespace lockstep
