// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/affine_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/random.h"

namespace lockstep {
namespace {

// The outputs of one dimension, [first, last), for which a tap of the kernel meets a pixel and not the
// padding.
struct Outputs {
  std::int64_t first, last;
};
std::vector<Outputs> outputs_of_taps(const ConvolutionShape& s, std::int64_t in, std::int64_t out) {
  const auto steps = [&](std::int64_t pixels) { return (pixels + s.stride - 1) / s.stride; };
  std::vector<Outputs> all;
  for (std::int64_t tap = 0; tap < s.kernel; ++tap) {
    const std::int64_t begin = tap * s.dilation - s.padding;  // the pixel of output 0
    all.push_back({std::max<std::int64_t>(steps(-begin), 0), std::min(steps(in - begin), out)});
  }
  return all;
}

// Calls multiply(x index, w index, y index, count) for every row of products in the sums of a convolution:
// the weight is multiplied with `count` pixels, s.stride apart, for as many adjacent outputs.
template <typename F>
void each_row(ConvolutionShape s, F multiply) {
  if (s.kernel == 1 && s.stride == 1 && s.padding == 0) {  // any image is one row
    s.in_width *= s.in_height;
    s.in_height = 1;
  }
  const std::int64_t group_in = s.in_channels / s.groups, group_out = s.out_channels / s.groups;
  const std::int64_t out_height = s.out_height(), out_width = s.out_width();
  const std::vector<Outputs> rows = outputs_of_taps(s, s.in_height, out_height);
  const std::vector<Outputs> columns = outputs_of_taps(s, s.in_width, out_width);
  for (std::int64_t n = 0; n < s.batch; ++n) {
    for (std::int64_t o = 0; o < s.out_channels; ++o) {
      const std::int64_t y = (n * s.out_channels + o) * out_height * out_width;
      for (std::int64_t i = 0; i < group_in; ++i) {
        const std::int64_t c = o / group_out * group_in + i;
        const std::int64_t x = (n * s.in_channels + c) * s.in_height * s.in_width;
        for (std::int64_t kh = 0; kh < s.kernel; ++kh) {
          for (std::int64_t kw = 0; kw < s.kernel; ++kw) {
            const auto [first, last] = columns[kw];
            for (std::int64_t h = rows[kh].first; h < rows[kh].last; ++h) {
              const std::int64_t xh = h * s.stride - s.padding + kh * s.dilation;
              multiply(x + xh * s.in_width + first * s.stride - s.padding + kw * s.dilation,
                       ((o * group_in + i) * s.kernel + kh) * s.kernel + kw, y + h * out_width + first,
                       last - first);
            }
          }
        }
      }
    }
  }
}

std::int64_t outputs(const ConvolutionShape& s) {
  return s.batch * s.out_channels * s.out_height() * s.out_width();
}

std::int64_t output_channel(const ConvolutionShape& s, std::int64_t y) {
  return y / (s.out_height() * s.out_width()) % s.out_channels;
}

// Calls function(T()) with the floating-point type T.
template <typename F>
void with_type(DType type, F function) {
  if (type == DType::f32) return function(float());
  if (type == DType::f16) return function(Half());
  if (type == DType::bf16) return function(BFloat16());
  CHECK(false, "no tensors of {}", name_of(type));
}

// Holds NaNs.
Buffer memory_for(const Layout& layout) {
  Buffer memory(layout.bytes(), Device{});
  std::memset(memory.data(), 0xff, memory.bytes());
  return memory;
}

}  // namespace

bool equally_many_nonzero(const Values& a, const Values& b) {
  return std::ssize(a) - std::ranges::count(a, 0.0f) == std::ssize(b) - std::ranges::count(b, 0.0f);
}

Values random_values(std::int64_t count, std::string_view purpose) {
  const Random random(7, purpose);
  Values values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = random.uniform(i, -1.0f, 1.0f);
  return values;
}

Doubles widen(const Values& values) { return {values.begin(), values.end()}; }

Values rounded(const Values& values, DType type) {
  const std::vector<std::byte> elements = to_elements(values, type);
  return from_elements(elements.data(), elements.size(), type);
}

double roundoff(DType type) { return type == DType::f32 ? 0 : type == DType::f16 ? 0x1p-11 : 0x1p-8; }

std::vector<std::byte> to_elements(const Values& values, DType type) {
  std::vector<std::byte> elements(values.size() * size_of(type));
  with_type(type, [&]<typename T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T element = static_cast<T>(values[i]);
      std::memcpy(elements.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return elements;
}

Values from_elements(const void* data, std::size_t bytes, DType type) {
  Values values(bytes / size_of(type));
  with_type(type, [&]<typename T>(T element) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, static_cast<const std::byte*>(data) + i * sizeof(T), sizeof(T));
      values[i] = static_cast<float>(element);
    }
  });
  return values;
}

double dot(const Doubles& a, const Doubles& b) {
  CHECK(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double relative_error(const Values& actual, const Doubles& expected) {
  CHECK(actual.size() == expected.size(), "{} values, expected {}", actual.size(), expected.size());
  Doubles difference = widen(actual);
  for (std::size_t i = 0; i < expected.size(); ++i) difference[i] -= expected[i];
  const double norm = std::sqrt(dot(expected, expected));
  return std::sqrt(dot(difference, difference)) / (norm > 0 ? norm : 1);
}

Doubles reference_forward(const ConvolutionShape& shape, const Doubles& x, const Doubles& w,
                          const Doubles& bias) {
  Doubles y(static_cast<std::size_t>(outputs(shape)));
  each_row(shape, [&](auto xi, auto wi, auto yi, auto count) {
    const double weight = w[wi];
    for (std::int64_t i = 0; i < count; ++i) y[yi + i] += x[xi + i * shape.stride] * weight;
  });
  if (bias.empty()) return y;
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] += bias[output_channel(shape, static_cast<std::int64_t>(i))];
  }
  return y;
}

Doubles reference_backward_data(const ConvolutionShape& shape, const Doubles& y_gradient, const Doubles& w) {
  Doubles gradient(
      static_cast<std::size_t>(shape.batch * shape.in_channels * shape.in_height * shape.in_width));
  each_row(shape, [&](auto xi, auto wi, auto yi, auto count) {
    const double weight = w[wi];
    for (std::int64_t i = 0; i < count; ++i) gradient[xi + i * shape.stride] += y_gradient[yi + i] * weight;
  });
  return gradient;
}

Doubles reference_backward_weights(const ConvolutionShape& shape, const Doubles& x,
                                   const Doubles& y_gradient) {
  Doubles gradient(static_cast<std::size_t>(shape.out_channels * shape.in_channels / shape.groups *
                                            shape.kernel * shape.kernel));
  each_row(shape, [&](auto xi, auto wi, auto yi, auto count) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += y_gradient[yi + i] * x[xi + i * shape.stride];
    gradient[wi] += sum;
  });
  return gradient;
}

Doubles reference_backward_bias(const ConvolutionShape& shape, const Doubles& y_gradient) {
  Doubles gradient(static_cast<std::size_t>(shape.out_channels));
  for (std::size_t i = 0; i < y_gradient.size(); ++i) {
    gradient[output_channel(shape, static_cast<std::int64_t>(i))] += y_gradient[i];
  }
  return gradient;
}

Buffer to_memory(const Values& plain, const Layout& layout) {
  CHECK(static_cast<std::int64_t>(plain.size()) == layout.shape().elements(), "{} values for {}",
        plain.size(), layout.describe());
  Stream stream(Device{}, StreamUse::compute);
  Buffer memory = memory_for(layout);
  const std::vector<std::byte> elements = to_elements(plain, layout.dtype());
  backend_for(Device{})
      .reorder(Layout(layout.shape(), layout.dtype()), layout)
      ->run(stream, elements.data(), memory.data());
  return memory;
}

Values to_plain(const Buffer& memory, const Layout& layout) {
  Stream stream(Device{}, StreamUse::compute);
  const Layout plain(layout.shape(), layout.dtype());
  std::vector<std::byte> elements(plain.bytes());
  backend_for(Device{}).reorder(layout, plain)->run(stream, memory.data(), elements.data());
  return from_elements(elements.data(), elements.size(), layout.dtype());
}

AffineRunner::AffineRunner(AffineKernel& kernel, std::int64_t bias_elements)
    : kernel_(kernel), bias_elements_(bias_elements), scratch_(kernel.scratch_bytes(), Device{}) {}

void* AffineRunner::spoiled_scratch() {
  if (scratch_.bytes() > 0) std::memset(scratch_.data(), 0xff, scratch_.bytes());
  return scratch_.data();
}

Values AffineRunner::plain_result(const Buffer& memory, const Layout& layout) {
  Values plain = to_plain(memory, layout);
  padding_is_zero_ =
      equally_many_nonzero(from_elements(memory.data(), memory.bytes(), layout.dtype()), plain);
  return plain;
}

Values AffineRunner::forward(const Values& x, const Values& w, const Values& bias) {
  const Buffer input = to_memory(x, kernel_.input());
  const Buffer weights = to_memory(w, kernel_.weights());
  const Buffer output = memory_for(kernel_.output());
  kernel_.forward(stream_, input.data(), weights.data(), bias.empty() ? nullptr : bias.data(), output.data(),
                  spoiled_scratch());
  return plain_result(output, kernel_.output());
}

Values AffineRunner::backward_data(const Values& y_gradient, const Values& w) {
  const Buffer output_gradient = to_memory(y_gradient, kernel_.output());
  const Buffer weights = to_memory(w, kernel_.weights());
  const Buffer input_gradient = memory_for(kernel_.input());
  kernel_.backward_data(stream_, output_gradient.data(), weights.data(), input_gradient.data(),
                        spoiled_scratch());
  return plain_result(input_gradient, kernel_.input());
}

AffineRunner::Gradients AffineRunner::backward_weights(const Values& x, const Values& y_gradient,
                                                       const Gradients& before, Write write) {
  const Buffer input = to_memory(x, kernel_.input());
  const Buffer output_gradient = to_memory(y_gradient, kernel_.output());
  const Buffer weights_gradient = to_memory(before.weights, kernel_.weights());
  Gradients after{.bias = before.bias};
  kernel_.backward_weights(stream_, input.data(), output_gradient.data(), weights_gradient.data(),
                           bias_elements_ == 0 ? nullptr : after.bias.data(), write, spoiled_scratch());
  after.weights = plain_result(weights_gradient, kernel_.weights());
  return after;
}

}  // namespace lockstep
