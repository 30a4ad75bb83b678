// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/product_choice.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

using dnnl::memory;
using Type = memory::data_type;

// The input keeps its layout: images stay blocked, and the weights are described as [out, C, H, W], which in
// plain memory is [out, C * H * W]. Forward is chosen first, because it determines the layout of the weights.
class LinearPlanner {
 public:
  LinearPlanner(const LinearShape& shape, const Layout& input, KernelChoices& choices)
      : shape_(shape), input_(input), choices_(choices), type_(to_dnnl(input.dtype())) {
    source_ = to_desc(input);
    weight_sizes_ = onednn::dims_of(source_);
    weight_sizes_[0] = shape.out_features;
    if (shape.bias) bias_ = memory::desc({shape.out_features}, Type::f32, memory::format_tag::x);
    destination_ = plain_desc({shape.batch, shape.out_features}, input.dtype());
  }

  AffineKernel::Plan plan() {
    AffineKernel::Plan plan;
    plan.forward = plan_forward();
    plan.input = input_;
    plan.output = Layout({shape_.batch, shape_.out_features}, input_.dtype());
    plan.weights = to_layout({shape_.out_features, shape_.in_features}, weights_);
    if (shape_.input_gradient) plan.backward_data = plan_backward_data();
    if (shape_.weight_gradient) plan.backward_weights = plan_backward_weights();
    return plan;
  }

 private:
  memory::desc any_weights(Type type) const {
    return memory::desc(weight_sizes_, type, memory::format_tag::any);
  }
  static memory::desc as(const memory::desc& kept, Type type) { return onednn::with_type(kept, type); }

  dnnl::inner_product_forward::primitive_desc describe_forward(Type type) const {
    return onednn::describe<dnnl::inner_product_forward>(onednn_engine(), scratchpad_attributes(),
                                                         dnnl::prop_kind::forward_training, as(source_, type),
                                                         any_weights(type), bias_, as(destination_, type));
  }

  // make(type, name) makes the product that computes in that type, if the processor supports it.
  template <typename Make>
  CpuProduct choose(AffineDirection direction, Make make) {
    std::vector<ProductCandidate> candidates;
    const auto add = [&](Type type, const char* name) {
      candidates.push_back({.name = name, .make = [&make, type, name] { return make(type, name); }});
    };
    add(Type::f32, "inner product");
    if (type_ == Type::bf16) add(Type::bf16, "inner product bf16");  // few processors support it
    return choose_product(choices_,
                          fmt::format("linear {}, {} to {} features", name_of(direction), input_.describe(),
                                      shape_.out_features),
                          candidates);
  }

  CpuProduct::Problem problem_of(AffineDirection direction, const memory::desc& weights) const {
    const bool bias = shape_.bias && direction != AffineDirection::backward_data;
    return {.direction = direction,
            .kept = {.x = source_, .w = weights, .y = destination_},
            .bias_elements = bias ? shape_.out_features : 0,
            .activation = direction == AffineDirection::forward ? shape_.activation : Activation::none};
  }

  AffineProduct plan_forward() {
    CpuProduct product = choose(AffineDirection::forward, [&](Type type, const char* name) {
      const auto pd = describe_forward(type);
      return CpuProduct(
          problem_of(AffineDirection::forward, onednn::with_type_or_plain(pd.weights_desc(), type_)),
          {.name = name,
           .primitive = dnnl::inner_product_forward(pd),
           .wanted = {.x = pd.src_desc(), .w = pd.weights_desc(), .y = pd.dst_desc()},
           .scratch = pd.scratchpad_desc()});
    });
    weights_ = product.problem().kept.w;
    return CpuProduct::as_product(std::move(product));
  }

  AffineProduct plan_backward_data() {
    return CpuProduct::as_product(choose(AffineDirection::backward_data, [&](Type type, const char* name) {
      const auto pd = onednn::describe_backward<dnnl::inner_product_backward_data>(
          onednn_engine(), scratchpad_attributes(), describe_forward(type), as(source_, type),
          any_weights(type), as(destination_, type));
      return CpuProduct(problem_of(AffineDirection::backward_data, weights_),
                        {.name = name,
                         .primitive = dnnl::inner_product_backward_data(pd),
                         .wanted = {.x = pd.diff_src_desc(), .w = pd.weights_desc(), .y = pd.diff_dst_desc()},
                         .scratch = pd.scratchpad_desc()});
    }));
  }

  AffineProduct plan_backward_weights() {
    return CpuProduct::as_product(choose(AffineDirection::backward_weights, [&](Type type, const char* name) {
      const auto pd = onednn::describe_backward<dnnl::inner_product_backward_weights>(
          onednn_engine(), scratchpad_attributes(), describe_forward(type), as(source_, type),
          any_weights(Type::f32), bias_, as(destination_, type));
      return CpuProduct(problem_of(AffineDirection::backward_weights, weights_),
                        {.name = name,
                         .primitive = dnnl::inner_product_backward_weights(pd),
                         .wanted = {.x = pd.src_desc(), .w = pd.diff_weights_desc(), .y = pd.diff_dst_desc()},
                         .scratch = pd.scratchpad_desc()});
    }));
  }

  LinearShape shape_;
  Layout input_;
  KernelChoices& choices_;
  Type type_;  // of the tensors
  memory::dims weight_sizes_;
  memory::desc bias_;
  memory::desc source_;
  memory::desc weights_;  // as forward chose
  memory::desc destination_;
};

}  // namespace

std::unique_ptr<AffineKernel> CpuBackend::linear(const LinearShape& shape, const Layout& input,
                                                 KernelChoices& choices) {
  check_linear(shape, input);
  const std::string what = fmt::format("a linear layer of {}", to_string(input.shape()));
  return plan_with_onednn(
      what, [&] { return std::make_unique<AffineKernel>(LinearPlanner(shape, input, choices).plan()); });
}

}  // namespace lockstep
