// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "kernels/cpu/affine.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/onednn.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

using dnnl::memory;
using Type = memory::data_type;

// The input is taken as it lies: images stay blocked, and the weights are seen as [out, C, H, W], which in
// plain memory is [out, C * H * W]. Forward is chosen first, because it decides how weights are kept.
class LinearPlanner {
 public:
  LinearPlanner(const LinearShape& shape, const Layout& input, KernelChoices& choices)
      : shape_(shape), input_(input), choices_(choices), type_(to_dnnl(input.dtype())) {
    source_ = to_desc(input);
    weight_sizes_ = onednn::dims_of(source_);
    weight_sizes_[0] = shape.out_features;
    if (shape.bias) bias_ = memory::desc({shape.out_features}, Type::f32, memory::format_tag::x);
    bias_elements_ = shape.bias ? shape.out_features : 0;
    destination_ = plain_desc({shape.batch, shape.out_features}, input.dtype());
  }

  AffineSteps plan() {
    AffineSteps steps;
    steps.forward = plan_forward();
    steps.input = input_;
    steps.output = Layout({shape_.batch, shape_.out_features}, input_.dtype());
    steps.weights = to_layout({shape_.out_features, shape_.in_features}, weights_);
    if (shape_.input_gradient) steps.backward_data = plan_backward_data();
    steps.backward_weights = plan_backward_weights();
    return steps;
  }

 private:
  memory::desc any_weights(Type type) const {
    return memory::desc(weight_sizes_, type, memory::format_tag::any);
  }
  static memory::desc as(const memory::desc& kept, Type type) { return onednn::with_type(kept, type); }

  dnnl::inner_product_forward::primitive_desc describe_forward(Type type) const {
    return onednn::describe<dnnl::inner_product_forward>(onednn_engine(), attributes_with(shape_.activation),
                                                         dnnl::prop_kind::forward_training, as(source_, type),
                                                         any_weights(type), bias_, as(destination_, type));
  }

  // make(type, name) makes the one that computes on that type, where this processor has it.
  template <typename Make>
  AffineStep choose(const char* direction, Make make) {
    std::vector<StepCandidate> candidates;
    const auto add = [&](Type type, const char* name) {
      candidates.push_back({.name = name, .make = [&make, type, name] { return make(type, name); }});
    };
    add(Type::f32, "inner product");
    if (type_ == Type::bf16) add(Type::bf16, "inner product bf16");  // few processors know it
    return choose_step(
        choices_,
        fmt::format("linear {}, {} to {} features", direction, input_.describe(), shape_.out_features),
        candidates);
  }

  AffineStep plan_forward() {
    AffineStep step = choose("forward", [&](Type type, const char* name) {
      const auto pd = describe_forward(type);
      return AffineStep({.first = {.argument = DNNL_ARG_SRC, .kept = source_},
                         .second = {.argument = DNNL_ARG_WEIGHTS,
                                    .kept = onednn::with_type_or_plain(pd.weights_desc(), type_),
                                    .batched = false},
                         .result = {.argument = DNNL_ARG_DST, .kept = destination_},
                         .bias_argument = DNNL_ARG_BIAS,
                         .bias_elements = bias_elements_},
                        {name, dnnl::inner_product_forward(pd), pd.src_desc(), pd.weights_desc(),
                         pd.dst_desc(), pd.scratchpad_desc()});
    });
    weights_ = step.roles().second.kept;
    return step;
  }

  AffineStep plan_backward_data() {
    return choose("backward data", [&](Type type, const char* name) {
      const auto pd = onednn::describe_backward<dnnl::inner_product_backward_data>(
          onednn_engine(), scratchpad_attributes(), describe_forward(type), as(source_, type),
          any_weights(type), as(destination_, type));
      return AffineStep({.first = {.argument = DNNL_ARG_DIFF_DST, .kept = destination_},
                         .second = {.argument = DNNL_ARG_WEIGHTS, .kept = weights_, .batched = false},
                         .result = {.argument = DNNL_ARG_DIFF_SRC, .kept = source_}},
                        {name, dnnl::inner_product_backward_data(pd), pd.diff_dst_desc(), pd.weights_desc(),
                         pd.diff_src_desc(), pd.scratchpad_desc()});
    });
  }

  AffineStep plan_backward_weights() {
    return choose("backward weights", [&](Type type, const char* name) {
      const auto pd = onednn::describe_backward<dnnl::inner_product_backward_weights>(
          onednn_engine(), scratchpad_attributes(), describe_forward(type), as(source_, type),
          any_weights(Type::f32), bias_, as(destination_, type));
      return AffineStep({.first = {.argument = DNNL_ARG_SRC, .kept = source_},
                         .second = {.argument = DNNL_ARG_DIFF_DST, .kept = destination_},
                         .result = {.argument = DNNL_ARG_DIFF_WEIGHTS, .kept = weights_, .batched = false},
                         .bias_argument = DNNL_ARG_DIFF_BIAS,
                         .bias_elements = bias_elements_},
                        {name, dnnl::inner_product_backward_weights(pd), pd.src_desc(), pd.diff_dst_desc(),
                         pd.diff_weights_desc(), pd.scratchpad_desc()});
    });
  }

  LinearShape shape_;
  Layout input_;
  KernelChoices& choices_;
  Type type_;  // of the tensors
  memory::dims weight_sizes_;
  std::int64_t bias_elements_ = 0;
  memory::desc bias_;
  memory::desc source_;
  memory::desc weights_;  // as forward chose
  memory::desc destination_;
};

}  // namespace

std::unique_ptr<AffineKernel> make_cpu_linear(const LinearShape& shape, const Layout& input,
                                              KernelChoices& choices) {
  check_linear(shape, input);
  const std::string what = fmt::format("a linear layer of {}", to_string(input.shape()));
  return plan_with_onednn(what,
                          [&] { return make_onednn_affine(LinearPlanner(shape, input, choices).plan()); });
}

}  // namespace lockstep
