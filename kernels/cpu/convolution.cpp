// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "kernels/cpu/affine.h"
#include "kernels/cpu/kernels.h"

namespace lockstep {
namespace {

using dnnl::memory;
constexpr auto kF32 = memory::data_type::f32;
constexpr auto kAny = memory::format_tag::any;

struct Sizes {
  memory::dims source, weights, bias, destination, strides, dilation, padding;
};

void validate(const ConvolutionShape& s, const Layout& input) {
  const Shape expected{s.batch, s.in_channels, s.in_height, s.in_width};
  const bool positive = s.batch > 0 && s.in_channels > 0 && s.in_height > 0 && s.in_width > 0 &&
                        s.out_channels > 0 && s.kernel > 0 && s.stride > 0 && s.padding >= 0 &&
                        s.dilation > 0 && s.groups > 0;
  if (!positive) {
    throw ConfigError(
        "convolution: sizes, kernel, stride, dilation and groups must be at least 1, padding at least 0");
  }
  if (s.in_channels % s.groups != 0 || s.out_channels % s.groups != 0) {
    throw ConfigError(fmt::format("convolution: {} -> {} channels do not divide into {} groups",
                                  s.in_channels, s.out_channels, s.groups));
  }
  const std::int64_t reach = s.dilation * (s.kernel - 1) + 1;
  if (s.in_height + 2 * s.padding < reach || s.in_width + 2 * s.padding < reach) {
    throw ConfigError(
        fmt::format("convolution: kernel {} with dilation {} does not fit {}x{} with padding {}", s.kernel,
                    s.dilation, s.in_height, s.in_width, s.padding));
  }
  if (input.shape() != expected) {
    throw ConfigError(fmt::format("convolution: the input is {}, expected {}", to_string(input.shape()),
                                  to_string(expected)));
  }
}

Sizes sizes_of(const ConvolutionShape& s) {
  Sizes sizes{.source = {s.batch, s.in_channels, s.in_height, s.in_width},
              .weights = {s.out_channels, s.in_channels, s.kernel, s.kernel},
              .bias = {s.out_channels},
              .destination = {s.batch, s.out_channels, s.out_height(), s.out_width()},
              .strides = {s.stride, s.stride},
              .dilation = {s.dilation - 1, s.dilation - 1},  // oneDNN counts the gaps
              .padding = {s.padding, s.padding}};
  if (s.groups > 1) {
    sizes.weights = {s.groups, s.out_channels / s.groups, s.in_channels / s.groups, s.kernel, s.kernel};
  }
  return sizes;
}

// Every kernel is direct; the place where another algorithm would be chosen for a shape and direction.
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

AffinePlan plan_convolution(const ConvolutionShape& shape, const Layout& input) {
  const Sizes s = sizes_of(shape);
  const memory::desc bias = shape.bias ? memory::desc(s.bias, kF32, memory::format_tag::x) : memory::desc();
  const memory::desc any_source(s.source, kF32, kAny);
  const memory::desc any_weights(s.weights, kF32, kAny);
  const memory::desc any_destination(s.destination, kF32, kAny);
  const dnnl::primitive_attr attributes = scratchpad_attributes();
  const dnnl::engine& engine = onednn_engine();
  AffinePlan plan{
      .outputs = shape.out_channels,
      .bias = shape.bias,
      .input = input,
      .output_shape = Shape(s.destination),
      .weights_shape = {shape.out_channels, shape.in_channels / shape.groups, shape.kernel, shape.kernel}};

  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, kAlgorithm, any_source, any_weights, bias, any_destination,
       s.strides, s.dilation, s.padding, s.padding},
      attributes, engine);
  plan.forward = {dnnl::convolution_forward(forward), forward.src_desc(), forward.weights_desc(),
                  forward.dst_desc(), forward.scratchpad_desc()};

  // The gradients have the layouts of what they are gradients of.
  const dnnl::convolution_backward_data::primitive_desc data(
      {kAlgorithm, plan.forward.source, any_weights, plan.forward.destination, s.strides, s.dilation,
       s.padding, s.padding},
      attributes, engine, forward);
  plan.backward_data = {dnnl::convolution_backward_data(data), data.diff_src_desc(), data.weights_desc(),
                        data.diff_dst_desc(), data.scratchpad_desc()};

  const dnnl::convolution_backward_weights::primitive_desc weights(
      {kAlgorithm, plan.forward.source, any_weights, bias, plan.forward.destination, s.strides, s.dilation,
       s.padding, s.padding},
      attributes, engine, forward);
  plan.backward_weights = {dnnl::convolution_backward_weights(weights), weights.src_desc(),
                           weights.diff_weights_desc(), weights.diff_dst_desc(), weights.scratchpad_desc()};
  return plan;
}

}  // namespace

std::unique_ptr<AffineKernel> make_cpu_convolution(const ConvolutionShape& shape, const Layout& input) {
  validate(shape, input);
  const std::string what =
      fmt::format("a {0}x{0} convolution of {1}", shape.kernel, to_string(input.shape()));
  return plan_with_onednn(what, [&] { return make_onednn_affine(plan_convolution(shape, input)); });
}

}  // namespace lockstep
