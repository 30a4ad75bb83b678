// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/affine.h"

#include <algorithm>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/image_input.h"
#include "kernels/cuda/layout.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

// Scratch memory: the staged input, a weights gradient on its way to be added, the product's workspace.
class CudaAffine final : public AffineKernel {
 public:
  CudaAffine(const CudaAffinePlan& plan, CudaProducts products)
      : plan_(plan), products_(std::move(products)) {
    input_ = plan_.input.kept();
    output_ = plan_.output;
    weights_ = plan_.weights;
    choice_ = {.forward = products_.forward.name, .backward_weights = products_.backward_weights.name};
    std::size_t workspace =
        std::max(products_.forward.workspace_bytes, products_.backward_weights.workspace_bytes);
    if (products_.backward_data) {
      choice_.backward_data = products_.backward_data->name;
      workspace = std::max(workspace, products_.backward_data->workspace_bytes);
    }
    if (plan_.bias) workspace = std::max(workspace, cuda_bias_gradient_scratch_bytes(plan_.result));
    sum_offset_ = align_up(plan_.input.bytes(), kWorkspaceAlignment);
    workspace_offset_ = sum_offset_;
    if (!products_.backward_weights.adds) {
      workspace_offset_ += align_up(weights_.bytes(), kWorkspaceAlignment);
    }
    scratch_bytes_ = workspace_offset_ + workspace;
    if (scratch_bytes_ > 0) scratch_bytes_ += kWorkspaceAlignment - kAlignment;  // scratch is aligned to less
  }

  void forward(Stream& stream, const void* input, const void* weights, const float* bias, void* output,
               void* scratch) override {
    const Scratch s = split(scratch);
    const AffineOperands operands{
        .x = plan_.input.bring(stream, input, s.staged), .w = weights, .y = output, .workspace = s.workspace};
    products_.forward.run(stream, operands, Write::overwrite);
    CHECK(plan_.bias == (bias != nullptr), "bias {}, planned {}", bias != nullptr, plan_.bias);
    if (bias != nullptr) {
      cuda_bias_activation(stream, plan_.result, {.activation = plan_.activation, .bias = bias, .y = output});
    } else if (plan_.activation != Activation::none) {
      cuda_activation_forward(stream, {.activation = plan_.activation,
                                       .type = plan_.result.type,
                                       .count = plan_.result.elements(),
                                       .x = output,
                                       .y = output});
    }
  }

  void backward_data(Stream& stream, const void* output_gradient, const void* weights, void* input_gradient,
                     void* scratch) override {
    CHECK(products_.backward_data, "this kernel was planned without the gradient of its input");
    const Scratch s = split(scratch);
    void* target = plan_.input.target(input_gradient, s.staged);
    products_.backward_data->run(stream,
                                 {.x = target, .w = weights, .y = output_gradient, .workspace = s.workspace},
                                 Write::overwrite);
    plan_.input.deliver(stream, s.staged, input_gradient);
  }

  void backward_weights(Stream& stream, const void* input, const void* output_gradient,
                        void* weights_gradient, float* bias_gradient, Write write, void* scratch) override {
    const Scratch s = split(scratch);
    const CudaProduct& product = products_.backward_weights;
    const bool apart = write == Write::accumulate && !product.adds;
    void* target = apart ? s.sum : weights_gradient;
    product.run(stream,
                {.x = plan_.input.bring(stream, input, s.staged),
                 .w = target,
                 .y = output_gradient,
                 .workspace = s.workspace},
                apart ? Write::overwrite : write);
    if (apart) {
      cuda_add(stream, {.type = weights_.dtype(),
                        .count = weights_.physical_elements(),
                        .a = weights_gradient,
                        .b = target,
                        .sum = weights_gradient});
    }
    CHECK(plan_.bias == (bias_gradient != nullptr), "bias gradient {}, planned {}", bias_gradient != nullptr,
          plan_.bias);
    if (bias_gradient == nullptr) return;
    cuda_bias_gradient(
        stream, plan_.result,
        {.y_gradient = output_gradient, .gradient = bias_gradient, .write = write, .scratch = s.workspace});
  }

 private:
  struct Scratch {
    void* staged;
    void* sum;
    void* workspace;
  };
  Scratch split(void* scratch) const {
    auto* begin = reinterpret_cast<std::byte*>(
        align_up(reinterpret_cast<std::uintptr_t>(scratch), kWorkspaceAlignment));
    return {.staged = begin, .sum = begin + sum_offset_, .workspace = begin + workspace_offset_};
  }

  CudaAffinePlan plan_;
  CudaProducts products_;
  std::size_t sum_offset_ = 0;
  std::size_t workspace_offset_ = 0;
};

// The input as the products of a convolution want it. Groups take no padding: it would shift their channels.
Layout convolution_input(const ConvolutionShape& shape, const Layout& input) {
  const std::optional<ChannelsLast> given = channels_last(input);
  ChannelsLast wanted{.outer = shape.batch,
                      .channels = shape.in_channels,
                      .pixels = shape.in_height * shape.in_width,
                      .physical_channels = shape.in_channels};
  if (shape.groups == 1) {
    wanted.physical_channels =
        std::max(padded_channels(shape.in_channels, input.dtype()), given ? given->physical_channels : 0);
  }
  return channels_last_layout(input.shape(), input.dtype(), wanted);
}

}  // namespace

std::unique_ptr<AffineKernel> make_cuda_affine(const CudaAffinePlan& plan, CudaProducts products) {
  return std::make_unique<CudaAffine>(plan, std::move(products));
}

CudaConvolutionPlan plan_cuda_convolution(const ConvolutionShape& s, const Layout& input) {
  check_convolution(s, input);
  const Layout wanted = convolution_input(s, input);
  const std::int64_t physical = wanted.physical_elements() / (s.batch * s.in_height * s.in_width);
  const DType type = input.dtype();
  const std::int64_t pixels = s.out_height() * s.out_width();
  CudaConvolutionPlan plan{
      .affine = {.input = LayoutStaging(input, wanted),
                 .output =
                     channels_last_layout({s.batch, s.out_channels, s.out_height(), s.out_width()}, type,
                                          {.outer = s.batch,
                                           .channels = s.out_channels,
                                           .pixels = pixels,
                                           .physical_channels = s.out_channels}),
                 .weights = channels_last_layout(
                     {s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel}, type,
                     {.outer = s.out_channels,
                      .channels = s.in_channels / s.groups,
                      .pixels = s.kernel * s.kernel,
                      .physical_channels = physical / s.groups}),
                 .result = {.type = type, .rows = s.batch * pixels, .channels = s.out_channels},
                 .bias = s.bias,
                 .activation = s.activation},
      .physical = s};
  plan.physical.in_channels = physical;
  return plan;
}

CudaLinearPlan plan_cuda_linear(const LinearShape& s, const Layout& input) {
  check_linear(s, input);
  const DType type = input.dtype();
  const Shape weights{s.out_features, s.in_features};
  CudaLinearPlan plan{.affine = {.input = LayoutStaging(input, input),
                                 .output = Layout({s.batch, s.out_features}, type),
                                 .weights = Layout(weights, type),
                                 .result = {.type = type, .rows = s.batch, .channels = s.out_features},
                                 .bias = s.bias,
                                 .activation = s.activation},
                      .physical = s};
  // Images are taken as they lie; the weights lie as they do.
  if (const ChannelsLast* images = arrangement_of(input)) {
    ChannelsLast like_images = *images;
    like_images.outer = s.out_features;
    plan.affine.weights = channels_last_layout(weights, type, like_images);
    plan.physical.in_features = images->pixels * images->physical_channels;
  }
  return plan;
}

}  // namespace lockstep
