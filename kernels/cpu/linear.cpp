// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "kernels/cpu/affine.h"
#include "kernels/cpu/kernels.h"

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
AffinePlan plan_linear(const LinearShape& shape, const Layout& input) {
  const memory::desc source = to_desc(input);
  memory::dims weight_sizes = source.dims();
  weight_sizes[0] = shape.out_features;
  const memory::desc any_weights(weight_sizes, kF32, memory::format_tag::any);
  const memory::desc bias =
      shape.bias ? memory::desc({shape.out_features}, kF32, memory::format_tag::x) : memory::desc();
  const memory::desc destination({shape.batch, shape.out_features}, kF32, memory::format_tag::nc);
  const dnnl::primitive_attr attributes = scratchpad_attributes();
  const dnnl::engine& engine = onednn_engine();
  AffinePlan plan{.outputs = shape.out_features,
                  .bias = shape.bias,
                  .input = input,
                  .output_shape = {shape.batch, shape.out_features},
                  .weights_shape = {shape.out_features, shape.in_features}};

  const dnnl::inner_product_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, source, any_weights, bias, destination}, attributes, engine);
  plan.forward = {dnnl::inner_product_forward(forward), forward.src_desc(), forward.weights_desc(),
                  forward.dst_desc(), forward.scratchpad_desc()};

  const dnnl::inner_product_backward_data::primitive_desc data({source, any_weights, destination}, attributes,
                                                               engine, forward);
  plan.backward_data = {dnnl::inner_product_backward_data(data), data.diff_src_desc(), data.weights_desc(),
                        data.diff_dst_desc(), data.scratchpad_desc()};

  const dnnl::inner_product_backward_weights::primitive_desc weights({source, any_weights, bias, destination},
                                                                     attributes, engine, forward);
  plan.backward_weights = {dnnl::inner_product_backward_weights(weights), weights.src_desc(),
                           weights.diff_weights_desc(), weights.diff_dst_desc(), weights.scratchpad_desc()};
  return plan;
}

}  // namespace

std::unique_ptr<AffineKernel> make_cpu_linear(const LinearShape& shape, const Layout& input) {
  validate(shape, input);
  const std::string what = fmt::format("a linear layer of {}", to_string(input.shape()));
  return plan_with_onednn(what, [&] { return make_onednn_affine(plan_linear(shape, input)); });
}

}  // namespace lockstep
