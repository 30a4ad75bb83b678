// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/affine.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/tensor/buffer.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/image_input.h"
#include "kernels/cuda/layout.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

// One direction: the library's product and the operations around it. Scratch memory holds, at multiples of
// kWorkspaceAlignment: the staged input; for a weight gradient that the library cannot accumulate, the
// summand; the workspace of the library or of the bias gradient.
class Around {
 public:
  Around(const CudaAffinePlan& plan, AffineDirection direction, AffineProduct library)
      : plan_(plan), direction_(direction), library_(std::move(library)) {
    std::size_t workspace = library_.scratch_bytes;
    sum_offset_ = workspace_offset_ = align_up(plan_.input.bytes(), kWorkspaceAlignment);
    if (direction == AffineDirection::backward_weights) {
      if (!library_.adds) workspace_offset_ += align_up(plan_.weights.bytes(), kWorkspaceAlignment);
      if (plan_.bias) workspace = std::max(workspace, cuda_bias_gradient_scratch_bytes(plan_.result));
    }
    scratch_bytes_ = workspace_offset_ + workspace;
    if (scratch_bytes_ > 0)
      scratch_bytes_ += kWorkspaceAlignment - kAlignment;  // scratch is only aligned to kAlignment
  }

  const std::string& name() const { return library_.name; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  void run(Stream& stream, const AffineOperands& operands) const {
    const bool wanted = plan_.bias && direction_ != AffineDirection::backward_data;
    CHECK(wanted == (operands.bias != nullptr), "{}: a bias or its gradient is given: {}, planned: {}",
          name_of(direction_), operands.bias != nullptr, wanted);
    switch (direction_) {
      case AffineDirection::forward:
        return forward(stream, operands);
      case AffineDirection::backward_data:
        return backward_data(stream, operands);
      case AffineDirection::backward_weights:
        return backward_weights(stream, operands);
    }
  }

 private:
  void forward(Stream& stream, const AffineOperands& o) const {
    const Scratch s = split(o.scratch);
    const void* x = plan_.input.bring(stream, o.x, s.staged);
    library_.run(stream, {.x = x, .w = o.w, .y = o.y, .scratch = s.workspace});
    void* y = const_cast<void*>(o.y);
    if (o.bias != nullptr) {
      cuda_bias_activation(stream, plan_.result, {.activation = plan_.activation, .bias = o.bias, .y = y});
    } else if (plan_.activation != Activation::none) {
      cuda_activation_forward(stream, {.activation = plan_.activation,
                                       .type = plan_.result.type,
                                       .count = plan_.result.elements(),
                                       .x = y,
                                       .y = y});
    }
  }

  void backward_data(Stream& stream, const AffineOperands& o) const {
    const Scratch s = split(o.scratch);
    void* gradient = const_cast<void*>(o.x);
    void* target = plan_.input.target(gradient, s.staged);
    library_.run(stream, {.x = target, .w = o.w, .y = o.y, .scratch = s.workspace});
    plan_.input.deliver(stream, s.staged, gradient);
  }

  void backward_weights(Stream& stream, const AffineOperands& o) const {
    const Scratch s = split(o.scratch);
    const bool apart = o.write == Write::accumulate && !library_.adds;
    library_.run(stream, {.x = plan_.input.bring(stream, o.x, s.staged),
                          .w = apart ? s.sum : o.w,
                          .y = o.y,
                          .write = apart ? Write::overwrite : o.write,
                          .scratch = s.workspace});
    if (apart) {
      cuda_add(stream, {.type = plan_.weights.dtype(),
                        .count = plan_.weights.physical_elements(),
                        .a = o.w,
                        .b = s.sum,
                        .sum = const_cast<void*>(o.w)});
    }
    if (o.bias == nullptr) return;
    cuda_bias_gradient(stream, plan_.result,
                       {.y_gradient = o.y, .gradient = o.bias, .write = o.write, .scratch = s.workspace});
  }

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
  AffineDirection direction_;
  AffineProduct library_;
  std::size_t sum_offset_ = 0;
  std::size_t workspace_offset_ = 0;
  std::size_t scratch_bytes_ = 0;
};

// The layout of the input that a convolution's products read: channels last, padded as padded_channels()
// says. With groups there is no padding, because it would shift the groups' channels.
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

std::unique_ptr<AffineKernel> make_cuda_affine(const CudaAffinePlan& plan,
                                               const std::function<AffineProduct(AffineDirection)>& library) {
  const auto around = [&](AffineDirection direction) -> AffineProduct {
    const auto shared = std::make_shared<const Around>(plan, direction, library(direction));
    return {
        .name = shared->name(),
        .scratch_bytes = shared->scratch_bytes(),
        .adds = direction == AffineDirection::backward_weights,
        .run = [shared](Stream& stream, const AffineOperands& operands) { shared->run(stream, operands); }};
  };
  AffineKernel::Plan made{.input = plan.input.kept(),
                          .output = plan.output,
                          .weights = plan.weights,
                          .adds_input_gradient = plan.adds_input_gradient};
  made.forward = around(AffineDirection::forward);
  if (plan.input_gradient) made.backward_data = around(AffineDirection::backward_data);
  if (plan.weight_gradient) made.backward_weights = around(AffineDirection::backward_weights);
  return std::make_unique<AffineKernel>(std::move(made));
}

CudaAffinePlan plan_cuda_convolution(const ConvolutionShape& s, const Layout& input) {
  check_convolution(s, input);
  const Layout wanted = convolution_input(s, input);
  const std::int64_t physical = wanted.physical_elements() / (s.batch * s.in_height * s.in_width);
  const DType type = input.dtype();
  const std::int64_t pixels = s.out_height() * s.out_width();
  LayoutStaging staging(input, wanted);
  return {
      .input = staging,
      .output = channels_last_layout({s.batch, s.out_channels, s.out_height(), s.out_width()}, type,
                                     {.outer = s.batch,
                                      .channels = s.out_channels,
                                      .pixels = pixels,
                                      .physical_channels = s.out_channels}),
      .weights = channels_last_layout({s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel}, type,
                                      {.outer = s.out_channels,
                                       .channels = s.in_channels / s.groups,
                                       .pixels = s.kernel * s.kernel,
                                       .physical_channels = physical / s.groups}),
      .physical_inputs = physical,
      .result = {.type = type, .rows = s.batch * pixels, .channels = s.out_channels},
      .bias = s.bias,
      .activation = s.activation,
      .input_gradient = s.input_gradient,
      .weight_gradient = s.weight_gradient,
      .adds_input_gradient = s.input_gradient && s.adds_input_gradient && staging.bytes() == 0};
}

CudaAffinePlan plan_cuda_linear(const LinearShape& s, const Layout& input) {
  check_linear(s, input);
  const DType type = input.dtype();
  const Shape weights{s.out_features, s.in_features};
  CudaAffinePlan plan{.input = LayoutStaging(input, input),
                      .output = Layout({s.batch, s.out_features}, type),
                      .weights = Layout(weights, type),
                      .physical_inputs = s.in_features,
                      .result = {.type = type, .rows = s.batch, .channels = s.out_features},
                      .bias = s.bias,
                      .activation = s.activation,
                      .input_gradient = s.input_gradient,
                      .weight_gradient = s.weight_gradient};
  // Images keep their layout; the weights have the same one, so that no image is rearranged.
  if (const ChannelsLast* images = arrangement_of(input)) {
    ChannelsLast like_images = *images;
    like_images.outer = s.out_features;
    plan.weights = channels_last_layout(weights, type, like_images);
    plan.physical_inputs = images->pixels * images->physical_channels;
  }
  return plan;
}

}  // namespace lockstep
