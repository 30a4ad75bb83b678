// SPDX-License-Identifier: Apache-2.0
#include "kernels/shape_checks.h"

#include <algorithm>

#include "core/error.h"
#include "core/text/enum_words.h"

namespace lockstep {
namespace {

void check_type(const char* what, const Layout& input) {
  const DType type = input.dtype();
  CHECK(type == DType::f32 || type == DType::f16 || type == DType::bf16,
        "{}: the type is {}, expected fp32, fp16 or bf16", what, name_of(type));
}

void check_fused(const char* what, Activation activation) {
  if (is_fused(activation)) return;
  throw ConfigError(
      fmt::format("{}: {} must be a layer of its own; only none, relu and relu6 can be applied "
                  "to the result of another layer",
                  what, word_of(activation)));
}

void check_range(const char* what, double value, double most) {
  if (value >= 0 && value <= most) return;
  throw ConfigError(fmt::format("{} is {}, allowed is 0 to {}", what, value, most));
}

}  // namespace

void check_convolution(const ConvolutionShape& s, const Layout& input) {
  check_fused("convolution", s.activation);
  const bool positive = s.batch > 0 && s.in_channels > 0 && s.in_height > 0 && s.in_width > 0 &&
                        s.out_channels > 0 && s.kernel > 0 && s.stride > 0 && s.padding >= 0 &&
                        s.dilation > 0 && s.groups > 0;
  if (!positive) {
    throw ConfigError(
        fmt::format("convolution: batch {}, {} -> {} channels, {}x{}, kernel {}, stride {}, padding {}, "
                    "dilation {}, groups {}; padding must be at least 0, the other numbers at least 1",
                    s.batch, s.in_channels, s.out_channels, s.in_height, s.in_width, s.kernel, s.stride,
                    s.padding, s.dilation, s.groups));
  }
  if (s.in_channels % s.groups != 0 || s.out_channels % s.groups != 0) {
    throw ConfigError(fmt::format("convolution: {} -> {} channels cannot be divided into {} groups",
                                  s.in_channels, s.out_channels, s.groups));
  }
  const std::int64_t reach = s.dilation * (s.kernel - 1) + 1;
  if (s.in_height + 2 * s.padding < reach || s.in_width + 2 * s.padding < reach) {
    throw ConfigError(
        fmt::format("convolution: kernel {} with dilation {} does not fit {}x{} with padding {}", s.kernel,
                    s.dilation, s.in_height, s.in_width, s.padding));
  }
  const Shape expected{s.batch, s.in_channels, s.in_height, s.in_width};
  if (input.shape() != expected) {
    throw ConfigError(fmt::format("convolution: the input has the shape {}, expected {}",
                                  to_string(input.shape()), to_string(expected)));
  }
  check_type("convolution", input);
}

void check_linear(const LinearShape& s, const Layout& input) {
  check_fused("linear", s.activation);
  if (s.batch < 1 || s.in_features < 1 || s.out_features < 1) {
    throw ConfigError(fmt::format("linear: batch {}, {} -> {} features; each must be at least 1", s.batch,
                                  s.in_features, s.out_features));
  }
  const Shape& shape = input.shape();
  if (shape.rank() < 2 || shape[0] != s.batch || shape.elements() != s.batch * s.in_features) {
    throw ConfigError(fmt::format("linear: the input has the shape {}, expected {} samples of {} features",
                                  to_string(shape), s.batch, s.in_features));
  }
  check_type("linear", input);
}

void check_batch_norm(const BatchNormOptions& o, const Layout& input) {
  check_fused("batch norm", o.activation);
  const Shape& shape = input.shape();
  if ((shape.rank() != 2 && shape.rank() != 4) || shape.elements() == 0) {
    throw ConfigError(fmt::format(
        "batch norm: the input has the shape {}, expected [N, C] or [N, C, H, W] without a size of 0",
        to_string(shape)));
  }
  if (!(o.epsilon > 0)) {
    throw ConfigError(fmt::format("batch norm: epsilon is {}, must be above 0 (usual: 1e-5)", o.epsilon));
  }
  if (!(o.momentum >= 0 && o.momentum <= 1)) {
    throw ConfigError(fmt::format(
        "batch norm: momentum is {}, must be from 0 to 1; it is the weight of the new batch", o.momentum));
  }
  check_type("batch norm", input);
}

void check_pooling(const PoolingOptions& o, const Layout& input) {
  const Shape& in = input.shape();
  if (in.rank() != 4 || in.elements() == 0) {
    throw ConfigError(fmt::format(
        "pooling: the input has the shape {}, expected [N, C, H, W] without a size of 0", to_string(in)));
  }
  check_type("pooling", input);
  if (o.global) return;
  // A window entirely within padding would have no maximum and no average.
  if (o.kernel < 1 || o.stride < 1 || o.padding < 0 || 2 * o.padding > o.kernel) {
    throw ConfigError(fmt::format(
        "pooling: kernel {}, stride {}, padding {}; kernel and stride must be at least 1, padding "
        "between 0 and half the kernel",
        o.kernel, o.stride, o.padding));
  }
  if (in[2] + 2 * o.padding < o.kernel || in[3] + 2 * o.padding < o.kernel) {
    throw ConfigError(fmt::format(
        "pooling: kernel {} is larger than the image of {}x{} with padding {}; use a smaller kernel, "
        "or global pooling",
        o.kernel, in[2], in[3], o.padding));
  }
}

void check_color_jitter(const ColorJitter& jitter, std::int64_t channels) {
  if (jitter.any() && channels != 1 && channels != 3) {
    throw ConfigError(
        fmt::format("color jitter: images have {} channels, allowed are 1 (gray) and 3 (RGB)", channels));
  }
  check_range("color jitter: brightness", jitter.brightness, 100);
  check_range("color jitter: contrast", jitter.contrast, 100);
  check_range("color jitter: saturation", jitter.saturation, 100);
  check_range("color jitter: hue", jitter.hue, 0.5);
}

void check_output_loss(const OutputLoss& a) {
  CHECK(a.loss != Loss::cross_entropy, "softmax_cross_entropy() computes cross_entropy");
  const bool fits =
      a.outputs == a.classes || (a.outputs == 1 && (a.loss == Loss::mean_squared_error || a.classes <= 2));
  if (a.classes < 1 || !fits)
    throw ConfigError(fmt::format(
        "{}: {} outputs for {} classes; expected one for each class, or a single one{}", word_of(a.loss),
        a.outputs, a.classes, a.loss == Loss::mean_squared_error ? "" : " for two classes"));
}

void check_image_input(const ImageInput& input) {
  const auto fits = [&](std::span<const float> values) {
    return values.empty() || static_cast<std::int64_t>(values.size()) == input.channels;
  };
  if (!fits(input.mean) || !fits(input.deviation)) {
    throw ConfigError(
        fmt::format("image input: the numbers of means and deviations are {} and {}, expected {} (channels)",
                    input.mean.size(), input.deviation.size(), input.channels));
  }
  for (const float deviation : input.deviation) {
    if (!(deviation > 0))
      throw ConfigError(fmt::format(
          "image input: a deviation is {}, must be above 0; pixels are divided by it", deviation));
  }
  if (input.source != DType::u8 && input.source != DType::f32) {
    throw ConfigError(
        fmt::format("image input: samples have the type {}, allowed are u8 and fp32", name_of(input.source)));
  }
  if (input.source != DType::u8 &&
      (input.augmentation.any() || !input.mean.empty() || !input.deviation.empty())) {
    throw ConfigError(
        fmt::format("image input: samples have the type {}, only u8 can be normalised and augmented",
                    name_of(input.source)));
  }
  check_color_jitter(input.augmentation.color, input.channels);
  check_range("image input: the probability of random erasing", input.augmentation.random_erasing, 1);
  check_range("image input: the alpha of mixup", input.augmentation.mixup, 100);
  check_range("image input: the alpha of cutmix", input.augmentation.cutmix, 100);
  const std::int64_t padding = input.augmentation.crop_padding;
  if (padding < 0 || padding > std::min(input.height, input.width)) {
    throw ConfigError(
        fmt::format("image input: crop padding is {} for images of {}x{}, allowed is 0 to the shorter side",
                    padding, input.height, input.width));
  }
  const std::int64_t cutout = input.augmentation.cutout;
  if (cutout < 0 || cutout > 2 * std::max(input.height, input.width)) {
    throw ConfigError(
        fmt::format("image input: cutout is {} for images of {}x{}, allowed is 0 to twice the longer side",
                    cutout, input.height, input.width));
  }
}

}  // namespace lockstep
