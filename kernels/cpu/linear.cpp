// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "kernels/cpu/affine.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {
namespace {

using dnnl::memory;
constexpr auto kF32 = memory::data_type::f32;

void validate(const LinearShape& s, const Layout& input) {
  if (s.batch < 1 || s.in_features < 1 || s.out_features < 1) {
    throw ConfigError(fmt::format("linear: batch {}, {} -> {} features; each must be at least 1", s.batch,
                                  s.in_features, s.out_features));
  }
  const Shape& shape = input.shape();
  if (shape.rank() < 2 || shape[0] != s.batch || shape.elements() != s.batch * s.in_features) {
    throw ConfigError(fmt::format("linear: the input is {}, expected {} samples of {} features",
                                  to_string(shape), s.batch, s.in_features));
  }
}

// The input is taken as it lies: images stay blocked, and the weights are seen as [out, C, H, W], which in
// plain memory is [out, C * H * W].
AffineSteps plan_linear(const LinearShape& shape, const Layout& input) {
  const memory::desc source = to_desc(input);
  memory::dims weight_sizes = onednn::dims_of(source);
  weight_sizes[0] = shape.out_features;
  const memory::desc any_weights(weight_sizes, kF32, memory::format_tag::any);
  const memory::desc bias =
      shape.bias ? memory::desc({shape.out_features}, kF32, memory::format_tag::x) : memory::desc();
  const std::int64_t bias_elements = shape.bias ? shape.out_features : 0;
  const memory::desc destination({shape.batch, shape.out_features}, kF32, memory::format_tag::nc);
  const dnnl::primitive_attr attributes = scratchpad_attributes();
  const dnnl::engine& engine = onednn_engine();

  const auto forward = onednn::describe<dnnl::inner_product_forward>(
      engine, attributes_with(shape.activation), dnnl::prop_kind::forward_training, source, any_weights, bias,
      destination);
  const memory::desc kept_weights = forward.weights_desc();
  AffineSteps steps{.input = input,
                    .output = Layout({shape.batch, shape.out_features}, DType::f32),
                    .weights = to_layout({shape.out_features, shape.in_features}, kept_weights)};
  steps.forward =
      AffineStep({.first = {.argument = DNNL_ARG_SRC, .kept = source},
                  .second = {.argument = DNNL_ARG_WEIGHTS, .kept = kept_weights, .batched = false},
                  .result = {.argument = DNNL_ARG_DST, .kept = destination},
                  .bias_argument = DNNL_ARG_BIAS,
                  .bias_elements = bias_elements},
                 {"inner product", dnnl::inner_product_forward(forward), source, kept_weights, destination,
                  forward.scratchpad_desc()});

  if (shape.input_gradient) {
    const auto data = onednn::describe_backward<dnnl::inner_product_backward_data>(
        engine, attributes, forward, source, any_weights, destination);
    steps.backward_data =
        AffineStep({.first = {.argument = DNNL_ARG_DIFF_DST, .kept = destination},
                    .second = {.argument = DNNL_ARG_WEIGHTS, .kept = kept_weights, .batched = false},
                    .result = {.argument = DNNL_ARG_DIFF_SRC, .kept = source}},
                   {"inner product", dnnl::inner_product_backward_data(data), destination,
                    data.weights_desc(), data.diff_src_desc(), data.scratchpad_desc()});
  }

  const auto weights = onednn::describe_backward<dnnl::inner_product_backward_weights>(
      engine, attributes, forward, source, any_weights, bias, destination);
  steps.backward_weights =
      AffineStep({.first = {.argument = DNNL_ARG_SRC, .kept = source},
                  .second = {.argument = DNNL_ARG_DIFF_DST, .kept = destination},
                  .result = {.argument = DNNL_ARG_DIFF_WEIGHTS, .kept = kept_weights, .batched = false},
                  .bias_argument = DNNL_ARG_DIFF_BIAS,
                  .bias_elements = bias_elements},
                 {"inner product", dnnl::inner_product_backward_weights(weights), source, destination,
                  weights.diff_weights_desc(), weights.scratchpad_desc()});
  return steps;
}

}  // namespace

std::unique_ptr<AffineKernel> make_cpu_linear(const LinearShape& shape, const Layout& input, KernelChoices&) {
  validate(shape, input);
  const std::string what = fmt::format("a linear layer of {}", to_string(input.shape()));
  return plan_with_onednn(what, [&] { return make_onednn_affine(plan_linear(shape, input)); });
}

}  // namespace lockstep
