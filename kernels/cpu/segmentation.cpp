// SPDX-License-Identifier: Apache-2.0
//
// Kernels of networks that have an output for each pixel: upsampling, concatenation, targets of pixels.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {
namespace {

using LayoutTag = dnnl::memory::format_tag;

// Below this many bytes one thread is faster than waking a team.
constexpr std::int64_t kBytesForATeam = 1 << 15;
constexpr std::int64_t kSummedLanes = 16;  // elements summed together

Layout tagged_layout(const Shape& shape, DType type, LayoutTag tag) {
  return to_layout(shape, dnnl::memory::desc({shape[0], shape[1], shape[2], shape[3]}, to_dnnl(type), tag));
}

struct BlockedTag {
  LayoutTag tag;
  std::int64_t block;  // channels that lie together
};

// The arrangement of an activation among those that these kernels work on; plain for others.
BlockedTag blocked_tag_of(const Layout& layout) {
  const Shape& shape = layout.shape();
  for (const BlockedTag& each : {BlockedTag{LayoutTag::nChw16c, 16},
                                 {LayoutTag::nChw8c, 8},
                                 {LayoutTag::nChw4c, 4},
                                 {LayoutTag::nhwc, shape[1]}})
    if (layout == tagged_layout(shape, layout.dtype(), each.tag)) return each;
  return {LayoutTag::nchw, 1};
}

std::int64_t up_to(std::int64_t channels, std::int64_t block) {
  return (channels + block - 1) / block * block;
}

template <typename T>
void upsample_rows(const UpsamplingShape& s, const T* x, T* y) {
  const std::int64_t row = s.width * s.inner, wide = row * s.factor;
#pragma omp parallel for schedule(static) if (s.outer * s.height * wide * std::int64_t{sizeof(T)} >= \
                                              kBytesForATeam)
  for (std::int64_t r = 0; r < s.outer * s.height; ++r) {
    T* first = y + r * s.factor * wide;
    T* to = first;
    for (std::int64_t column = 0; column < s.width; ++column)
      for (std::int64_t copy = 0; copy < s.factor; ++copy, to += s.inner)
        std::copy_n(x + r * row + column * s.inner, s.inner, to);
    for (std::int64_t copy = 1; copy < s.factor; ++copy) std::copy_n(first, wide, first + copy * wide);
  }
}

template <typename T>
void sum_rows(const UpsamplingShape& s, const T* y_gradient, T* x_gradient) {
  const std::int64_t wide = s.width * s.inner * s.factor;
#pragma omp parallel for schedule(static) if (s.outer * s.height * wide * std::int64_t{sizeof(T)} >= \
                                              kBytesForATeam)
  for (std::int64_t r = 0; r < s.outer * s.height; ++r) {
    for (std::int64_t column = 0; column < s.width; ++column) {
      const std::int64_t to = (r * s.width + column) * s.inner;
      const T* from = y_gradient + s.first(to);
      for (std::int64_t begin = 0; begin < s.inner; begin += kSummedLanes) {
        const std::int64_t lanes = std::min(kSummedLanes, s.inner - begin);
        float sums[kSummedLanes] = {};
        for (std::int64_t down = 0; down < s.factor; ++down)
          for (std::int64_t right = 0; right < s.factor; ++right)
            for (std::int64_t i = 0; i < lanes; ++i)
              sums[i] += static_cast<float>(from[down * wide + right * s.inner + begin + i]);
        for (std::int64_t i = 0; i < lanes; ++i) x_gradient[to + begin + i] = static_cast<T>(sums[i]);
      }
    }
  }
}

struct Runs {
  std::size_t a, b;  // bytes of a row
};
Runs runs_of(const ConcatenationShape& s) {
  return {static_cast<std::size_t>(s.a_elements) * size_of(s.type),
          static_cast<std::size_t>(s.b_elements) * size_of(s.type)};
}

}  // namespace

UpsamplingPlan CpuBackend::plan_upsampling(std::int64_t factor, const Layout& input) {
  const Shape& in = input.shape();
  const auto [tag, block] = blocked_tag_of(input);
  return {.input = tagged_layout(in, input.dtype(), tag),
          .output = tagged_layout({in[0], in[1], in[2] * factor, in[3] * factor}, input.dtype(), tag),
          .shape = {.outer = in[0] * (up_to(in[1], block) / block),
                    .height = in[2],
                    .width = in[3],
                    .inner = block,
                    .factor = factor,
                    .type = input.dtype()}};
}

// Blocks of channels are copied whole, so the first tensor must fill its last block.
ConcatenationPlan CpuBackend::plan_concatenation(const Layout& a, const Layout& b) {
  const Shape &in_a = a.shape(), &in_b = b.shape();
  const DType type = a.dtype();
  auto [tag, block] = blocked_tag_of(a);
  if (tag == LayoutTag::nhwc || in_a[1] % block != 0) {
    tag = LayoutTag::nchw;
    block = 1;
  }
  const Shape out{in_a[0], in_a[1] + in_b[1], in_a[2], in_a[3]};
  const std::int64_t pixels = in_a[2] * in_a[3];
  return {.a = tagged_layout(in_a, type, tag),
          .b = tagged_layout(in_b, type, tag),
          .output = tagged_layout(out, type, tag),
          .shape = {.rows = in_a[0],
                    .a_elements = in_a[1] * pixels,
                    .b_elements = up_to(in_b[1], block) * pixels,
                    .type = type}};
}

Layout CpuBackend::pixel_rows(const Shape& shape, DType type) {
  return tagged_layout(shape, type, LayoutTag::nhwc);
}

void CpuBackend::upsample_forward(Stream&, const UpsamplingForward& a) {
  with_element(a.shape.type, [&](auto element) {
    using T = typename decltype(element)::type;
    upsample_rows(a.shape, static_cast<const T*>(a.x), static_cast<T*>(a.y));
  });
}

void CpuBackend::upsample_backward(Stream&, const UpsamplingBackward& a) {
  with_element(a.shape.type, [&](auto element) {
    using T = typename decltype(element)::type;
    sum_rows(a.shape, static_cast<const T*>(a.y_gradient), static_cast<T*>(a.x_gradient));
  });
}

void CpuBackend::concatenate(Stream&, const Concatenation& a) {
  const Runs run = runs_of(a.shape);
#pragma omp parallel for schedule(static) if (a.shape.rows * static_cast <std::int64_t>(run.a + run.b) >= \
                                              kBytesForATeam)
  for (std::int64_t row = 0; row < a.shape.rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    std::byte* to = static_cast<std::byte*>(a.joined) + r * (run.a + run.b);
    std::memcpy(to, static_cast<const std::byte*>(a.a) + r * run.a, run.a);
    std::memcpy(to + run.a, static_cast<const std::byte*>(a.b) + r * run.b, run.b);
  }
}

void CpuBackend::separate(Stream&, const Separation& a) {
  const Runs run = runs_of(a.shape);
#pragma omp parallel for schedule(static) if (a.shape.rows * static_cast <std::int64_t>(run.a + run.b) >= \
                                              kBytesForATeam)
  for (std::int64_t row = 0; row < a.shape.rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const std::byte* from = static_cast<const std::byte*>(a.joined) + r * (run.a + run.b);
    if (a.a != nullptr) std::memcpy(static_cast<std::byte*>(a.a) + r * run.a, from, run.a);
    if (a.b != nullptr) std::memcpy(static_cast<std::byte*>(a.b) + r * run.b, from + run.a, run.b);
  }
}

void CpuBackend::pixel_targets(Stream&, const PixelTargets& a) {
#pragma omp parallel for schedule(static) if (a.batch * a.pixels >= kBytesForATeam)
  for (std::int64_t image = 0; image < a.batch; ++image) {
    const std::uint8_t* mask = a.masks + image * a.pixels;
    const std::int64_t counted = a.pixels - std::count(mask, mask + a.pixels, kIgnoredPixel);
    const float weight = a.weights[image];
    const float each = weight == 0 || counted == 0 ? 0.0f
                       : a.share_weight            ? weight / static_cast<float>(counted)
                                                   : 1.0f;
    for (std::int64_t i = 0; i < a.pixels; ++i) {
      const bool ignored = mask[i] == kIgnoredPixel;
      a.labels[image * a.pixels + i] = ignored ? 0 : mask[i];
      a.pixel_weights[image * a.pixels + i] = ignored ? 0.0f : each;
    }
  }
}

}  // namespace lockstep
