// SPDX-License-Identifier: Apache-2.0
//
// Memory traffic per pixel of C channels: C bytes read in accesses of 4 to 16 bytes (byte by byte from the
// cache if images are augmented), and the padded channels written in 16-byte accesses (mixed images: one
// access per pixel); for three channels 3 + 8 bytes with half types, 3 + 16 with fp32. fp32 samples: 4 C
// bytes read.
#include <algorithm>

#include "kernels/cuda/element.h"
#include "kernels/cuda/image_input.h"
#include "kernels/cuda/launch.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

struct Channels {
  Normalize normalize[kMostImageChannels];
};

template <typename T>
constexpr int padded(int channels) {
  return static_cast<int>(padded_channels(channels, std::is_same_v<T, float> ? DType::f32 : DType::f16));
}

// The input elements of one thread, read in the widest possible accesses.
template <typename From, int kCount>
struct alignas(kCount * sizeof(From) % 16 == 0  ? 16
               : kCount * sizeof(From) % 8 == 0 ? 8
                                                : 4) Words {
  From elements[kCount];
};

// Pixels per thread: whole words of input, and 32 bytes of output if that is at least 4 pixels.
template <typename T, int kChannels>
constexpr int kPixels = std::max(4, static_cast<int>(32 / (padded<T>(kChannels) * sizeof(T))));

template <typename From, typename T, int kChannels>
__global__ void __launch_bounds__(kMostBlockThreads)
    image_input_kernel(std::int64_t pixels, Channels channels, const From* images, T* output) {
  constexpr int kPadded = padded<T>(kChannels);
  constexpr int kCount = kPixels<T, kChannels>;
  const std::int64_t first = kCount * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  const From* from = images + first * kChannels;
  T* to = output + first * kPadded;
  if (first + kCount <= pixels && aligned(images, output)) {
    const auto read = *reinterpret_cast<const Words<From, kCount * kChannels>*>(from);
    Lanes<kCount* kPadded> lanes = {};
#pragma unroll
    for (int pixel = 0; pixel < kCount; ++pixel) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        lanes[pixel * kPadded + c] = channels.normalize[c](read.elements[pixel * kChannels + c]);
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

struct Augmented {
  Augment augment;
  const SampleId* samples;
};

// Distributes output pixels over threads like image_input_kernel.
template <typename T, int kChannels>
__global__ void __launch_bounds__(kMostBlockThreads)
    augmented_input_kernel(std::int64_t pixels, Channels channels, Augmented how, const std::uint8_t* images,
                           T* output) {
  constexpr int kPadded = padded<T>(kChannels);
  constexpr int kCount = kPixels<T, kChannels>;
  const std::int64_t first = kCount * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (first >= pixels) return;
  const std::int64_t image_pixels = std::int64_t{how.augment.height} * how.augment.width;
  std::int64_t image = first / image_pixels;
  int place = static_cast<int>(first - image * image_pixels);
  Augment::View view = how.augment.view(how.samples[image]);
  const int count = pixels - first < kCount ? static_cast<int>(pixels - first) : kCount;
  Lanes<kCount* kPadded> lanes = {};
#pragma unroll
  for (int pixel = 0; pixel < kCount; ++pixel, ++place) {
    if (pixel >= count) continue;
    if (place == image_pixels) {
      place = 0;
      view = how.augment.view(how.samples[++image]);
    }
    const int row = place / how.augment.width, column = place % how.augment.width;
    const int seen = how.augment.seen(view, row, column);
    const bool blank = view.blank(row, column);
    const std::uint8_t* from = images + (image * image_pixels + seen) * kChannels;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float value = channels.normalize[c](seen < 0 ? std::uint8_t{0} : from[c]);
      lanes[pixel * kPadded + c] = blank ? 0.0f : value;
    }
  }
  T* to = output + first * kPadded;
  if (count == kCount && aligned(output)) return store(to, lanes);
#pragma unroll
  for (int i = 0; i < kCount * kPadded; ++i) {
    if (i < count * kPadded) to[i] = from_float<T>(lanes[i]);
  }
}

// One thread per pixel, which reads the pixel in the image and in its partner.
template <typename T, int kChannels>
__global__ void __launch_bounds__(kMostBlockThreads)
    mixed_input_kernel(std::int64_t images, Channels channels, Augmented how, Mix mix, MixedSamples mixed,
                       const std::uint8_t* from, T* output) {
  constexpr int kPadded = padded<T>(kChannels);
  const std::int64_t image_pixels = std::int64_t{how.augment.height} * how.augment.width;
  const std::int64_t pixel = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pixel >= images * image_pixels) return;
  const std::int64_t image = pixel / image_pixels, partner = image ^ 1;
  const int place = static_cast<int>(pixel - image * image_pixels);
  const int row = place / how.augment.width, column = place % how.augment.width;
  const Mix::View view = mix.view(image, images, how.samples, mixed.weights);
  if (place == 0) mixed.shares[image] = view.share;
  const auto show = [&](std::int64_t of, Lanes<kPadded>& values) {
    const Augment::View shown = how.augment.view(how.samples[of]);
    const int seen = how.augment.seen(shown, row, column);
    const bool blank = shown.blank(row, column);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const std::uint8_t byte = seen < 0 ? std::uint8_t{0} : from[(of * image_pixels + seen) * kChannels + c];
      values[c] = blank ? 0.0f : channels.normalize[c](byte);
    }
  };
  Lanes<kPadded> own = {}, partners = {};
  show(image, own);
  if (view.share < 1) {
    show(partner, partners);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) own[c] = view(own[c], partners[c], row, column);
  }
  T* to = output + pixel * kPadded;
  if (aligned(output)) return store(to, own);
#pragma unroll
  for (int c = 0; c < kPadded; ++c) to[c] = from_float<T>(own[c]);
}

// The arguments of a call.
struct Images {
  const CudaImageInput& input;
  const void* from;
  void* to;
  const SampleId* samples;
  const MixedSamples& mixed;
};

template <typename T, int kChannels>
void run(Stream& stream, const Images& images) {
  const CudaImageInput& input = images.input;
  Channels channels;
  std::copy_n(input.normalize.begin(), kMostImageChannels, channels.normalize);
  const std::int64_t pixels = input.pixels();
  if (pixels == 0) return;
  const int threads = block_threads();
  const std::int64_t blocks = ceil_div(pixels, std::int64_t{threads} * kPixels<T, kChannels>);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .block = dim3(static_cast<unsigned>(threads))};
  auto* to = static_cast<T*>(images.to);
  if (input.source == DType::f32) {
    const auto* values = static_cast<const float*>(images.from);
    return launch(image_input_kernel<float, T, kChannels>, shape, stream, pixels, channels, values, to);
  }
  const auto* bytes = static_cast<const std::uint8_t*>(images.from);
  if (input.mix.any() && images.samples != nullptr) {
    const Augmented how{input.augment, images.samples};
    LaunchShape each = shape;
    each.grid = dim3(static_cast<unsigned>(ceil_div(pixels, std::int64_t{threads})));
    return launch(mixed_input_kernel<T, kChannels>, each, stream, input.batch, channels, how, input.mix,
                  images.mixed, bytes, to);
  }
  if (input.augments && images.samples != nullptr) {
    const Augmented how{input.augment, images.samples};
    launch(augmented_input_kernel<T, kChannels>, shape, stream, pixels, channels, how, bytes, to);
  } else {
    launch(image_input_kernel<std::uint8_t, T, kChannels>, shape, stream, pixels, channels, bytes, to);
  }
}

}  // namespace

CudaImageInput CudaImageInput::from(const ImageInput& input) {
  if (input.channels < 1 || input.channels > kMostImageChannels) {
    throw ConfigError(fmt::format("image input: images have {} channels, a CUDA device supports 1 to {}",
                                  input.channels, kMostImageChannels));
  }
  check_image_input(input);
  CudaImageInput made{.batch = input.batch,
                      .height = static_cast<int>(input.height),
                      .width = static_cast<int>(input.width),
                      .channels = input.channels,
                      .type = input.type,
                      .source = input.source,
                      .augment = Augment::from(input.augmentation, input.height, input.width),
                      .augments = input.augmentation.places_or_mixes(),
                      .mix = Mix::from(input.augmentation, input.height, input.width)};
  for (std::size_t c = 0; c < static_cast<std::size_t>(input.channels); ++c) {
    made.normalize[c] = Normalize::from(input.mean.empty() ? 0.0f : input.mean[c],
                                        input.deviation.empty() ? 1.0f : input.deviation[c]);
  }
  return made;
}

void cuda_image_input(Stream& stream, const CudaImageInput& input, const void* images, void* output,
                      const SampleId* samples, const MixedSamples& mixed) {
  const Images all{.input = input, .from = images, .to = output, .samples = samples, .mixed = mixed};
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
