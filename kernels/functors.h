// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of elementwise operations, written once: the CPU backend loops over it, the CUDA backend
// launches it. Each is a plain value, callable on host and device.
#pragma once

#include <bit>
#include <cmath>
#include <type_traits>

#include "core/tensor/dtype.h"
#include "kernels/activation.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/image_input.h"
#include "kernels/update.h"

// Always inlined: vector loops are compiled for several instruction sets, and so must be the functions they
// call.
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep {

// One functor per Activation: its value, and the gradient of x from y's gradient and the result y. T is
// float, or a vector of floats in the CPU's vector loops.
struct Identity {
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T x) const {
    return x;
  }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T gradient(T, T y_gradient) const {
    return y_gradient;
  }
};

// PyTorch's relu: NaN stays NaN, and passes its gradient.
struct Relu {
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T x) const {
    return x <= T{} ? T{} : x;
  }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T gradient(T y, T y_gradient) const {
    return y <= T{} ? T{} : y_gradient;
  }
};

// PyTorch's relu6, which treats NaN likewise.
struct Relu6 {
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T x) const {
    const T six = T{} + 6.0f;
    const T low = x <= T{} ? T{} : x;
    return low >= six ? six : low;
  }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T gradient(T y, T y_gradient) const {
    return y * (6.0f - y) <= T{} ? T{} : y_gradient;  // y is in [0, 6]: one comparison detects both ends
  }
};

// Function::of() of a float, or of each element of a vector.
template <typename Function, typename T>
LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T each(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return Function::of(x);
  } else {
    for (int i = 0; i < static_cast<int>(sizeof(T) / sizeof(float)); ++i) x[i] = Function::of(x[i]);
    return x;
  }
}

struct Sigmoid {
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float of(float x) { return 1.0f / (1.0f + std::exp(-x)); }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T x) const {
    return each<Sigmoid>(x);
  }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T gradient(T y, T y_gradient) const {
    return y_gradient * (y * (1.0f - y));
  }
};

struct Tanh {
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float of(float x) { return std::tanh(x); }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T x) const {
    return each<Tanh>(x);
  }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T gradient(T y, T y_gradient) const {
    return y_gradient * (1.0f - y * y);
  }
};

// Its gradient takes x, not y.
struct Gelu {
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float below(float x) {
    return 0.5f * std::erfc(-0.70710678f * x);  // P(X <= x)
  }
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float of(float x) { return x * below(x); }
  struct Slope {
    LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float of(float x) {
      return below(x) + x * (0.39894228f * std::exp(-0.5f * x * x));
    }
  };
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T x) const {
    return each<Gelu>(x);
  }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T gradient(T x, T y_gradient) const {
    return y_gradient * each<Slope>(x);
  }
};

// Calls function with the functor of an activation that is_fused().
template <typename F>
LOCKSTEP_INLINE void with_activation(Activation activation, F&& function) {
  switch (activation) {
    case Activation::relu:
      return function(Relu());
    case Activation::relu6:
      return function(Relu6());
    default:
      return function(Identity());
  }
}

// Calls function with the functor of any activation.
template <typename F>
LOCKSTEP_INLINE void with_any_activation(Activation activation, F&& function) {
  switch (activation) {
    case Activation::sigmoid:
      return function(Sigmoid());
    case Activation::tanh:
      return function(Tanh());
    case Activation::gelu:
      return function(Gelu());
    default:
      return with_activation(activation, function);
  }
}

// See HalfScale.
LOCKSTEP_HOST_DEVICE inline void choose_half_scale(const HalfScale& a) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  const std::int32_t bits = *a.largest;
  int power = 0;
  if (bits > 0 && bits < kInfinity) {
    power = 14 - ((bits >> 23) - 127);  // scales the largest value to [2^14, 2^15)
    for (std::int64_t terms = 1; terms < a.terms; terms *= 2) --power;
    power = power < -126 ? -126 : power > 126 ? 126 : power;
  }
  *a.scale = std::bit_cast<float>((127 + power) << 23);
  *a.inverse = std::bit_cast<float>((127 - power) << 23);
}

struct Add {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};

// The random words of one sample in one epoch, by block.
LOCKSTEP_HOST_DEVICE inline PhiloxCounter sample_words(SampleId sample, std::uint32_t block, PhiloxKey key) {
  return philox(
      {block, static_cast<std::uint32_t>(sample.index), static_cast<std::uint32_t>(sample.epoch), 0}, key);
}
// Uniform in [0, count), from one random word.
LOCKSTEP_HOST_DEVICE inline int even_below(std::uint32_t word, int count) {
  return static_cast<int>((word * static_cast<std::uint64_t>(count)) >> 32);
}

// Dropout of a sample's features, four at a time: one block of random numbers.
struct Dropout {
  PhiloxKey key;
  std::uint32_t dropped_below = 0;  // a word below this drops the feature
  float kept_scale = 1;

  static Dropout from(const DropoutArguments& arguments) {
    return {.key = arguments.key,
            .dropped_below = static_cast<std::uint32_t>(arguments.probability * 0x1p32f),
            .kept_scale = 1.0f / (1.0f - arguments.probability)};
  }
  // The words of features 4 * block to 4 * block + 3.
  LOCKSTEP_HOST_DEVICE PhiloxCounter words(SampleId sample, std::uint32_t block) const {
    return sample_words(sample, block, key);
  }
  LOCKSTEP_HOST_DEVICE float operator()(float x, std::uint32_t word) const {
    return word < dropped_below ? 0.0f : kept_scale * x;
  }
};

// uint8 pixel to (pixel / 255 - mean) / deviation, as scale * pixel + shift.
struct Normalize {
  float scale = 1.0f / 255.0f;
  float shift = 0.0f;

  static Normalize from(float mean, float deviation) {
    return {.scale = 1.0f / (255.0f * deviation), .shift = -mean / deviation};
  }
  LOCKSTEP_HOST_DEVICE float operator()(std::uint8_t pixel) const {
    return scale * static_cast<float>(pixel) + shift;
  }
  // fp32 samples are not normalised.
  LOCKSTEP_HOST_DEVICE float operator()(float value) const { return value; }
};

// Rows [top, bottom) and columns [left, right).
struct PixelBox {
  int top = 0, bottom = 0, left = 0, right = 0;

  LOCKSTEP_HOST_DEVICE bool has(int row, int column) const {
    return row >= top && row < bottom && column >= left && column < right;
  }
};

// Maps the pixels of an augmented image to those of the original, and marks the erased ones. Random numbers
// use only integers, products and square roots, which every device rounds alike.
struct Augment {
  std::uint32_t padding = 0;
  bool flips = false;
  int cutout = 0;
  std::uint64_t erased_below = 0;  // a word below this erases a box
  int height = 0;
  int width = 0;
  PhiloxKey key = {};

  struct View {
    int down = 0;   // offset from an output row to its source row
    int right = 0;  // the same for columns, after the flip
    bool flipped = false;
    PixelBox cut = {}, erased = {};

    LOCKSTEP_HOST_DEVICE bool blank(int row, int column) const {
      return cut.has(row, column) || erased.has(row, column);
    }
  };

  static Augment from(const Augmentation& augmentation, std::int64_t height, std::int64_t width) {
    return {.padding = static_cast<std::uint32_t>(augmentation.crop_padding),
            .flips = augmentation.horizontal_flip,
            .cutout = static_cast<int>(augmentation.cutout),
            .erased_below = static_cast<std::uint64_t>(augmentation.random_erasing * 0x1p32),
            .height = static_cast<int>(height),
            .width = static_cast<int>(width),
            .key = augmentation.key};
  }
  LOCKSTEP_HOST_DEVICE View view(SampleId sample) const {
    const PhiloxCounter first = sample_words(sample, 0, key);
    View view{.down = offset(first[0]), .right = offset(first[1]), .flipped = flips && (first[2] & 1) != 0};
    if (cutout == 0 && erased_below == 0) return view;
    const PhiloxCounter second = sample_words(sample, 1, key);
    if (cutout > 0) view.cut = square_about(even_below(second[0], height), even_below(second[1], width));
    if (second[2] < erased_below) view.erased = erased_box(sample);
    return view;
  }
  // The source pixel's index in the image; -1: black.
  LOCKSTEP_HOST_DEVICE int seen(const View& view, int row, int column) const {
    const int from_row = row + view.down;
    const int from_column = (view.flipped ? width - 1 - column : column) + view.right;
    const bool inside = from_row >= 0 && from_row < height && from_column >= 0 && from_column < width;
    return inside ? from_row * width + from_column : -1;
  }

 private:
  // Uniform in [-padding, padding].
  LOCKSTEP_HOST_DEVICE int offset(std::uint32_t word) const {
    return even_below(word, 2 * static_cast<int>(padding) + 1) - static_cast<int>(padding);
  }
  LOCKSTEP_HOST_DEVICE PixelBox square_about(int row, int column) const {
    const int top = row - cutout / 2, left = column - cutout / 2;
    return {.top = top, .bottom = top + cutout, .left = left, .right = left + cutout};
  }
  // From 0.3 to 3.3, uniform on a logarithmic scale of 256 steps.
  LOCKSTEP_HOST_DEVICE static float ratio(std::uint32_t word) {
    constexpr float kPowers[] = {1.0094479f, 1.0189850f, 1.0383304f, 1.0781300f, 1.1623644f,
                                 1.3510909f, 1.8254466f, 3.3322555f};  // powers 1, 2, 4 .. 128 of 11^(1/255)
    float product = 0.3f;
    for (int bit = 0; bit < 8; ++bit) {
      if ((word >> (24 + bit) & 1) != 0) product *= kPowers[bit];
    }
    return product;
  }
  // Like torchvision: up to ten attempts to draw a box smaller than the image.
  LOCKSTEP_HOST_DEVICE PixelBox erased_box(SampleId sample) const {
    constexpr std::uint32_t kLeast = 335544, kMost = 5536481;  // 2 % and 33 % of 2^24
    for (std::uint32_t attempt = 0; attempt < 10; ++attempt) {
      const PhiloxCounter drawn = sample_words(sample, 2 + attempt, key);
      const auto share = static_cast<float>(kLeast + even_below(drawn[0], kMost - kLeast));
      const float area = share * (static_cast<float>(height * width) * 0x1p-24f);
      const float times_as_high = ratio(drawn[1]);
      const int rows = static_cast<int>(std::sqrt(area * times_as_high) + 0.5f);
      const int columns = static_cast<int>(std::sqrt(area / times_as_high) + 0.5f);
      if (rows >= height || columns >= width) continue;
      const int top = even_below(drawn[2], height - rows + 1);
      const int left = even_below(drawn[3], width - columns + 1);
      return {.top = top, .bottom = top + rows, .left = left, .right = left + columns};
    }
    return {};
  }
};

// See SgdUpdate. Changes value and momentum buffer.
struct SgdStep {
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;
  bool gradient_has_momentum = false;

  LOCKSTEP_HOST_DEVICE void operator()(float& value, float gradient, float& momentum_buffer) const {
    const float decayed = (gradient_has_momentum ? 0.0f : gradient) + weight_decay * value;
    momentum_buffer = momentum * momentum_buffer + decayed;
    const float step = nesterov ? decayed + momentum * momentum_buffer : momentum_buffer;
    value -= learning_rate * (gradient_has_momentum ? gradient + step : step);
  }
};

// The numbers of AdamWUpdate.
struct AdamWRates {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::int64_t step = 1;
};

// See AdamWUpdate. Changes value and both moments.
struct AdamWStep {
  float learning_rate = 0;
  float weight_decay = 0;
  float penalty = 0;        // see UpdateSegment
  float first_weight = 0;   // 1 - beta1
  float second_decay = 0;   // beta2
  float second_weight = 0;  // 1 - beta2
  float step_size = 0;      // learning_rate / (1 - beta1^t)
  float second_scale = 0;   // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;

  LOCKSTEP_HOST_DEVICE static AdamWStep from(const AdamWRates& rates) {
    const auto step = static_cast<double>(rates.step);
    return {.learning_rate = static_cast<float>(rates.learning_rate),
            .first_weight = static_cast<float>(1 - rates.beta1),
            .second_decay = static_cast<float>(rates.beta2),
            .second_weight = static_cast<float>(1 - rates.beta2),
            .step_size = static_cast<float>(rates.learning_rate / (1 - std::pow(rates.beta1, step))),
            .second_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(rates.beta2, step))),
            .epsilon = static_cast<float>(rates.epsilon)};
  }
  LOCKSTEP_HOST_DEVICE void operator()(float& value, float gradient, float& first_moment,
                                       float& second_moment) const {
    gradient += penalty * value;
    first_moment += first_weight * (gradient - first_moment);
    second_moment = second_decay * second_moment + second_weight * gradient * gradient;
    const float denominator = std::sqrt(second_moment) * second_scale + epsilon;
    value = value * (1.0f - learning_rate * weight_decay) - step_size * (first_moment / denominator);
  }
};

// See GradientClip. squares: of all gradients, including the loss scale. Returns 1 if the sum is not finite:
// such a step is skipped.
LOCKSTEP_HOST_DEVICE inline float clip_of(double squares, double most_norm, float loss_scale) {
  const double norm = std::sqrt(squares) / static_cast<double>(loss_scale);
  const double factor = most_norm / (norm + 1e-6);
  return factor < 1.0 && factor > 0.0 ? static_cast<float>(factor) : 1.0f;
}
// The factor that an optimizer first applies to gradients.
LOCKSTEP_HOST_DEVICE inline float gradient_factor(const StepControl& control) {
  return control.clip / control.loss_scale;
}

// See AverageUpdate.
struct AverageStep {
  float weight = 0;  // 1 - d

  LOCKSTEP_HOST_DEVICE static AverageStep from(const StepControl& control, double decay) {
    const auto step = static_cast<double>(control.step - 1);
    const double early = (1 + step) / (10 + step);
    return {.weight = static_cast<float>(1 - (decay < early ? decay : early))};
  }
  LOCKSTEP_HOST_DEVICE void operator()(float value, float& average) const {
    average += weight * (value - average);
  }
};

// The arithmetic of Backend::finish_step.
LOCKSTEP_HOST_DEVICE inline void finish_step(const LossScaleRule& rule, StepControl& control) {
  if (control.finite == 0) {
    control.good_steps = 0;
    if (rule.interval == 0) return;
    const float lowered = control.loss_scale * rule.backoff;
    control.loss_scale = lowered > rule.least ? lowered : rule.least;
    return;
  }
  ++control.step;
  if (rule.interval == 0 || ++control.good_steps < rule.interval) return;
  control.good_steps = 0;
  const float grown = control.loss_scale * rule.growth;
  if (grown <= rule.most) control.loss_scale = grown;
}

// The r of LarsUpdate, from a segment's sums of squares.
struct TrustRatio {
  double coefficient = 0;
  double weight_decay = 0;
  double epsilon = 0;

  LOCKSTEP_HOST_DEVICE float operator()(const SquaredNorms& norms) const {
    if (!(norms.value > 0 && norms.gradient > 0)) return 1.0f;
    const double value = std::sqrt(norms.value);
    return static_cast<float>(coefficient * value /
                              (std::sqrt(norms.gradient) + weight_decay * value + epsilon));
  }
};

// See LarsUpdate. Changes value and momentum buffer.
struct LarsStep {
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  float trust_ratio = 1;

  LOCKSTEP_HOST_DEVICE void operator()(float& value, float gradient, float& momentum_buffer) const {
    momentum_buffer = momentum * momentum_buffer + trust_ratio * (gradient + weight_decay * value);
    value -= learning_rate * momentum_buffer;
  }
};

}  // namespace lockstep
