// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of kernels/color_jitter.h for one pixel, on host and device.
#pragma once

#include <cstdint>

#include "kernels/color_jitter.h"
#include "kernels/functors.h"

namespace lockstep {

// Members instead of arrays: an index known only at run time would keep an array out of registers.
struct Jitter {
  enum Operation { kBrightness, kContrast, kSaturation, kHue, kOperations };

  struct Amounts {
    float brightness, contrast, saturation, hue;

    LOCKSTEP_HOST_DEVICE float of(Operation operation) const {
      return operation == kBrightness   ? brightness
             : operation == kContrast   ? contrast
             : operation == kSaturation ? saturation
                                        : hue;
    }
  };
  // The parameters drawn for one sample in one epoch.
  struct View {
    Amounts amounts;      // factors; for hue a fraction of the circle
    std::uint32_t order;  // operations, two bits each, from the lowest bits up
    float gray = 0;       // mean gray of the image before the contrast operation

    LOCKSTEP_HOST_DEVICE Operation operation(int place) const {
      return static_cast<Operation>(order >> (2 * place) & 3u);
    }
  };
  struct Pixel {
    float red, green, blue;
  };

  Amounts most = {};
  int channels = 3;
  PhiloxKey key = {};

  static Jitter from(const ColorJitterArguments& a) {
    return {.most = {.brightness = static_cast<float>(a.how.brightness),
                     .contrast = static_cast<float>(a.how.contrast),
                     .saturation = static_cast<float>(a.how.saturation),
                     .hue = static_cast<float>(a.how.hue)},
            .channels = static_cast<int>(a.channels),
            .key = a.key};
  }

  LOCKSTEP_HOST_DEVICE View view(SampleId sample) const {
    const PhiloxCounter words = sample_words(sample, kBlock, key);
    const PhiloxCounter more = sample_words(sample, kBlock + 1, key);
    return {.amounts = {.brightness = factor(most.brightness, words[0]),
                        .contrast = factor(most.contrast, words[1]),
                        .saturation = factor(most.saturation, words[2]),
                        .hue = most.hue * (2 * uniform(more[0]) - 1)},
            .order = order(even_below(more[1], 24))};
  }
  LOCKSTEP_HOST_DEVICE bool needs_gray() const { return most.contrast > 0; }

  LOCKSTEP_HOST_DEVICE Pixel load(const std::uint8_t* pixel) const {
    const auto red = static_cast<float>(pixel[0]);
    if (channels == 1) return {red, red, red};
    return {red, static_cast<float>(pixel[1]), static_cast<float>(pixel[2])};
  }
  LOCKSTEP_HOST_DEVICE void store(const Pixel& pixel, std::uint8_t* to) const {
    to[0] = rounded(pixel.red);
    if (channels == 1) return;
    to[1] = rounded(pixel.green);
    to[2] = rounded(pixel.blue);
  }

  // The pixel's gray before the contrast operation, in 256ths: sums of integers do not depend on the order.
  LOCKSTEP_HOST_DEVICE double gray_before_contrast(Pixel pixel, const View& view) const {
    for (int i = 0; view.operation(i) != kContrast; ++i) pixel = apply(pixel, view, view.operation(i));
    return static_cast<double>(static_cast<std::int32_t>(gray_of(pixel) * 256.0f + 0.5f));
  }
  LOCKSTEP_HOST_DEVICE static float mean_gray(double sum, std::int64_t pixels) {
    return static_cast<float>(sum / (256.0 * static_cast<double>(pixels)));
  }
  LOCKSTEP_HOST_DEVICE Pixel operator()(Pixel pixel, const View& view) const {
    for (int i = 0; i < kOperations; ++i) pixel = apply(pixel, view, view.operation(i));
    return pixel;
  }

  // Processes a whole image on the host; `to` may be `from`.
  void run(SampleId sample, std::int64_t pixels, const std::uint8_t* from, std::uint8_t* to) const {
    View view = this->view(sample);
    if (needs_gray()) {
      double sum = 0;
      for (std::int64_t i = 0; i < pixels; ++i) sum += gray_before_contrast(load(from + i * channels), view);
      view.gray = mean_gray(sum, pixels);
    }
    for (std::int64_t i = 0; i < pixels; ++i)
      store((*this)(load(from + i * channels), view), to + i * channels);
  }

 private:
  static constexpr std::uint32_t kBlock = 80;  // block number, distinct from those of Augment and Mix

  LOCKSTEP_HOST_DEVICE static float uniform(std::uint32_t word) {
    return static_cast<float>(word >> 8) * 0x1p-24f;
  }
  LOCKSTEP_HOST_DEVICE static float factor(float amount, std::uint32_t word) {
    const float low = amount < 1 ? 1 - amount : 0, high = 1 + amount;
    return low + (high - low) * uniform(word);
  }
  // One of the 24 permutations, encoded as View::order.
  LOCKSTEP_HOST_DEVICE static std::uint32_t order(int number) {
    std::uint32_t left = 0xe4, order = 0;  // left: operations without a place yet, in order
    for (int place = 0; place < kOperations; ++place) {
      const int choices = kOperations - place, chosen = 2 * (number % choices);
      number /= choices;
      const std::uint32_t before = (1u << chosen) - 1;
      order |= (left >> chosen & 3u) << (2 * place);
      left = (left & before) | (left >> 2 & ~before);
    }
    return order;
  }
  LOCKSTEP_HOST_DEVICE static float bounded(float value) {
    return value < 0 ? 0.0f : value > 255 ? 255.0f : value;
  }
  LOCKSTEP_HOST_DEVICE static std::uint8_t rounded(float value) {
    return static_cast<std::uint8_t>(bounded(value) + 0.5f);
  }
  LOCKSTEP_HOST_DEVICE float gray_of(const Pixel& p) const {
    return channels == 1 ? p.red : 0.2989f * p.red + 0.587f * p.green + 0.114f * p.blue;
  }
  // Scales the distance of each channel to `gray` by factor.
  LOCKSTEP_HOST_DEVICE static Pixel blended(const Pixel& p, float gray, float factor) {
    const float rest = gray * (1 - factor);
    return {bounded(p.red * factor + rest), bounded(p.green * factor + rest),
            bounded(p.blue * factor + rest)};
  }

  LOCKSTEP_HOST_DEVICE Pixel apply(const Pixel& pixel, const View& view, Operation operation) const {
    if (most.of(operation) == 0) return pixel;
    const float amount = view.amounts.of(operation);
    if (operation == kBrightness) return blended(pixel, 0, amount);
    if (operation == kContrast) return blended(pixel, view.gray, amount);
    if (channels == 1) return pixel;
    return operation == kSaturation ? blended(pixel, gray_of(pixel), amount) : turned(pixel, amount);
  }

  // Shifts the hue by a fraction of the circle. The sextants run from red over yellow, green and so on back
  // to red.
  LOCKSTEP_HOST_DEVICE static Pixel turned(const Pixel& p, float share) {
    const float most =
        p.red > p.green ? (p.red > p.blue ? p.red : p.blue) : (p.green > p.blue ? p.green : p.blue);
    const float least =
        p.red < p.green ? (p.red < p.blue ? p.red : p.blue) : (p.green < p.blue ? p.green : p.blue);
    const float chroma = most - least;
    if (chroma <= 0) return p;
    float sixths = most == p.red     ? (p.green - p.blue) / chroma
                   : most == p.green ? 2 + (p.blue - p.red) / chroma
                                     : 4 + (p.red - p.green) / chroma;
    sixths += 6 * share;
    if (sixths < 0) sixths += 6;
    if (sixths >= 6) sixths -= 6;
    const int sector = static_cast<int>(sixths);
    const float part = sixths - static_cast<float>(sector);
    const float rising = least + chroma * part, falling = most - chroma * part;
    switch (sector) {
      case 0:
        return {most, rising, least};
      case 1:
        return {falling, most, least};
      case 2:
        return {least, most, rising};
      case 3:
        return {least, falling, most};
      case 4:
        return {rising, least, most};
      default:
        return {most, least, falling};
    }
  }
};

}  // namespace lockstep
