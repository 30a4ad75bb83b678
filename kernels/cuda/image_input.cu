// SPDX-License-Identifier: Apache-2.0
//
// Bytes per pixel: C read in 4-byte accesses, the padded channels written in 16-byte accesses; for three
// channels 3 + 8 in half types, 3 + 16 in fp32.
#include <algorithm>

#include "kernels/cuda/element.h"
#include "kernels/cuda/image_input.h"
#include "kernels/cuda/launch.h"

namespace lockstep {
namespace {

struct Channels {
  Normalize normalize[kMostImageChannels];
};

template <typename T>
constexpr int padded(int channels) {
  return static_cast<int>(padded_channels(channels, std::is_same_v<T, float> ? DType::f32 : DType::f16));
}

// Bytes that a thread reads together.
template <int kCount>
struct alignas(kCount % 16 == 0  ? 16
               : kCount % 8 == 0 ? 8
                                 : 4) Words {
  std::uint8_t elements[kCount];
};

// A thread's pixels: whole words of input, and two packs of output where that is as much.
template <typename T, int kChannels>
constexpr int kPixels = std::max(4, static_cast<int>(32 / (padded<T>(kChannels) * sizeof(T))));

template <typename T, int kChannels>
__global__ void __launch_bounds__(kMostBlockThreads)
    image_input_kernel(std::int64_t pixels, Channels channels, const std::uint8_t* images, T* output) {
  constexpr int kPadded = padded<T>(kChannels);
  constexpr int kCount = kPixels<T, kChannels>;
  const std::int64_t first = kCount * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  const std::uint8_t* from = images + first * kChannels;
  T* to = output + first * kPadded;
  if (first + kCount <= pixels && aligned(images, output)) {
    const auto bytes = *reinterpret_cast<const Words<kCount * kChannels>*>(from);
    Lanes<kCount* kPadded> lanes = {};
#pragma unroll
    for (int pixel = 0; pixel < kCount; ++pixel) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        lanes[pixel * kPadded + c] = channels.normalize[c](bytes.elements[pixel * kChannels + c]);
      }
    }
    store(to, lanes);
    return;
  }
  for (int pixel = 0; pixel < kCount && first + pixel < pixels; ++pixel) {
    for (int c = 0; c < kPadded; ++c) {
      const float value = c < kChannels ? channels.normalize[c](from[pixel * kChannels + c]) : 0.0f;
      to[pixel * kPadded + c] = from_float<T>(value);
    }
  }
}

// What a call is about.
struct Images {
  const CudaImageInput& input;
  const std::uint8_t* from;
  void* to;
};

template <typename T, int kChannels>
void run(Stream& stream, const Images& images) {
  Channels channels;
  std::copy_n(images.input.normalize.begin(), kMostImageChannels, channels.normalize);
  const std::int64_t pixels = images.input.pixels;
  if (pixels == 0) return;
  const int threads = block_threads();
  const std::int64_t blocks = ceil_div(pixels, std::int64_t{threads} * kPixels<T, kChannels>);
  launch(image_input_kernel<T, kChannels>,
         {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(static_cast<unsigned>(threads))}, stream,
         pixels, channels, images.from, static_cast<T*>(images.to));
}

}  // namespace

CudaImageInput CudaImageInput::from(const ImageInput& input) {
  if (input.channels < 1 || input.channels > kMostImageChannels) {
    throw ConfigError(fmt::format("image input: {} channels, a CUDA device takes images of 1 to {}",
                                  input.channels, kMostImageChannels));
  }
  const auto fits = [&](std::span<const float> values) {
    return values.empty() || static_cast<std::int64_t>(values.size()) == input.channels;
  };
  if (!fits(input.mean) || !fits(input.deviation)) {
    throw ConfigError(fmt::format("image input: {} means and {} deviations for {} channels",
                                  input.mean.size(), input.deviation.size(), input.channels));
  }
  CudaImageInput made{
      .pixels = input.batch * input.height * input.width, .channels = input.channels, .type = input.type};
  for (std::size_t c = 0; c < static_cast<std::size_t>(input.channels); ++c) {
    made.normalize[c] = Normalize::from(input.mean.empty() ? 0.0f : input.mean[c],
                                        input.deviation.empty() ? 1.0f : input.deviation[c]);
  }
  return made;
}

void cuda_image_input(Stream& stream, const CudaImageInput& input, const std::uint8_t* images, void* output) {
  const Images all{.input = input, .from = images, .to = output};
  with_element(input.type, [&](auto element) {
    using T = typename decltype(element)::type;
    switch (input.channels) {
      case 1:
        return run<T, 1>(stream, all);
      case 2:
        return run<T, 2>(stream, all);
      case 3:
        return run<T, 3>(stream, all);
      default:
        return run<T, 4>(stream, all);
    }
  });
}

}  // namespace lockstep
