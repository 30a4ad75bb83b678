// SPDX-License-Identifier: Apache-2.0
#include "models/planned_layer.h"

#include <algorithm>
#include <cmath>

#include "core/tensor/buffer.h"
#include "models/dropout_layer.h"
#include "models/flatten_layer.h"
#include "models/layer_norm_layer.h"
#include "models/reordered_input.h"
#include "models/softmax_layer.h"
#include "models/upsampling_layer.h"

namespace lockstep {
namespace {

// Values and gradients of a bias or of batch norm's parameters, which are fp32 in every precision. Null if
// there is no such parameter.
const float* values(const LayerMemory& memory, std::size_t index) {
  return index < memory.parameters.size() ? memory.parameters[index]->value : nullptr;
}
float* gradient(const LayerMemory& memory, std::size_t index) {
  return index < memory.parameters.size() ? static_cast<float*>(memory.parameters[index]->gradient) : nullptr;
}

// Convolution or linear.
class AffineLayer final : public PlannedLayer {
 public:
  AffineLayer(const LayerContext& context, std::unique_ptr<AffineKernel> kernel, std::int64_t fan_in,
              std::int64_t fan_out, std::int64_t outputs, bool bias, Initialization initialization, double l2)
      : kernel_(std::move(kernel)), frozen_(context.frozen) {
    output_ = kernel_->output();
    ParameterSpec weight{.suffix = "weight", .layout = kernel_->weights(), .l2 = static_cast<float>(l2)};
    ParameterSpec shift{.suffix = "bias", .layout = Layout({outputs}, DType::f32)};
    switch (initialization) {
      case Initialization::fan_in_uniform:
        weight.uniform_bound = shift.uniform_bound = 1.0f / std::sqrt(static_cast<float>(fan_in));
        break;
      case Initialization::he_normal:
        weight.deviation = std::sqrt(2.0f / static_cast<float>(fan_out));
        break;
      case Initialization::normal_001:
        weight.deviation = 0.01f;
        break;
      case Initialization::he_uniform:
        weight.uniform_bound = std::sqrt(6.0f / static_cast<float>(fan_in));
        break;
      case Initialization::glorot_uniform:
        weight.uniform_bound = std::sqrt(6.0f / static_cast<float>(fan_in + fan_out));
        break;
      case Initialization::zeros:
        break;
    }
    parameter_specs_.push_back(std::move(weight));
    if (bias) parameter_specs_.push_back(std::move(shift));
  }

  std::string choice(Direction direction) const override {
    return kernel_->choice(direction == Direction::backward_inputs       ? AffineDirection::backward_data
                           : direction == Direction::backward_parameters ? AffineDirection::backward_weights
                                                                         : AffineDirection::forward);
  }
  std::size_t scratch_bytes() const override { return kernel_->scratch_bytes(); }
  bool backward_reads_input(int) const override { return !frozen_; }
  bool adds_input_gradient() const override { return kernel_->adds_input_gradient(); }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    kernel_->forward(pass.stream, memory.inputs[0], memory.parameters[0]->weights, values(memory, 1),
                     memory.outputs[0], memory.scratch);
  }
  void backward_parameters(const Pass& pass, const LayerMemory& memory) override {
    if (frozen_) return;
    kernel_->backward_weights(pass.stream, memory.inputs[0], memory.output_gradients[0],
                              memory.parameters[0]->gradient, gradient(memory, 1), pass.gradients,
                              memory.scratch);
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    if (memory.input_gradients[0] == nullptr) return;
    if (memory.addend != memory.input_gradients[0] && memory.addend != nullptr)
      pass.stream.copy(memory.input_gradients[0], memory.addend, kernel_->input().bytes());
    kernel_->backward_data(pass.stream, memory.output_gradients[0], memory.parameters[0]->weights,
                           memory.input_gradients[0], memory.scratch);
  }

 private:
  std::unique_ptr<AffineKernel> kernel_;
  bool frozen_;
};

// The residual (the second input) may have another layout than x; it is converted in scratch memory, and so
// is its gradient. If frozen, it has a backward only if the gradient of an input is needed; without one it
// computes as in evaluation.
class BatchNormLayer final : public PlannedLayer {
 public:
  BatchNormLayer(const LayerContext& context, const BatchNormOptions& options, std::span<const Layout> inputs)
      : kernel_(context.backend.batch_norm(options, inputs[0])),
        adds_residual_(options.residual),
        goes_backward_(!context.frozen || context.input_gradient) {
    output_ = kernel_->layout();
    const Layout channels({output_.shape()[1]}, DType::f32);
    parameter_specs_ = {{.suffix = "weight", .layout = channels, .constant = options.initial_scale},
                        {.suffix = "bias", .layout = channels}};
    statistic_specs_ = {{.suffix = "running_mean", .layout = channels},
                        {.suffix = "running_var", .layout = channels, .constant = 1.0f}};
    if (adds_residual_) residual_ = ReorderedInput(context.backend, inputs[1], output_);
  }

  std::size_t saved_bytes() const override { return goes_backward_ ? kernel_->saved_bytes() : 0; }
  std::size_t scratch_bytes() const override {
    return align_up(kernel_->scratch_bytes()) + residual_.scratch_bytes();
  }
  bool backward_reads_input(int input) const override { return goes_backward_ && input == 0; }
  int shared_input() const override { return adds_residual_ ? 1 : 0; }
  Sharing output_sharing() const override {
    return adds_residual_ && !residual_.reorders() ? Sharing::in_place : Sharing::none;
  }
  // Only one of the two input gradients can use the output gradient's memory.
  Sharing gradient_sharing(int input) const override {
    const bool takes_it = adds_residual_ ? input == 1 && !residual_.reorders() : input == 0;
    return takes_it ? Sharing::in_place : Sharing::none;
  }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    const std::vector<float*>& running =
        pass.mode == Mode::training ? memory.statistics : memory.evaluation_statistics;
    const BatchNormForward arguments{
        .x = memory.inputs[0],
        .residual = residual_.read(pass, memory.inputs[1], residual_scratch(memory)),
        .parameters = parameters(memory),
        .running = {.mean = running[0], .variance = running[1]},
        .update_running = !pass.repeats,
        .across = pass.across,
        .y = memory.outputs[0],
        .saved = memory.saved,
        .scratch = memory.scratch};
    const bool saves = pass.mode == Mode::training && goes_backward_;
    saves ? kernel_->forward_training(pass.stream, arguments)
          : kernel_->forward_evaluation(pass.stream, arguments);
  }
  bool backward_is_one_kernel() const override { return goes_backward_; }
  void backward_parameters(const Pass& pass, const LayerMemory& memory) override {
    if (!goes_backward_) return;
    kernel_->backward(pass.stream, {.x = memory.inputs[0],
                                    .y_gradient = memory.output_gradients[0],
                                    .parameters = parameters(memory),
                                    .saved = memory.saved,
                                    .x_gradient = memory.input_gradients[0],
                                    .residual_gradient = residual_.gradient(memory.input_gradients[1],
                                                                            residual_scratch(memory)),
                                    .scale_gradient = gradient(memory, 0),
                                    .shift_gradient = gradient(memory, 1),
                                    .write = pass.gradients,
                                    .across = pass.across,
                                    .scratch = memory.scratch});
    residual_.written(pass, memory.input_gradients[1], residual_scratch(memory));
  }

 private:
  static BatchNormParameters parameters(const LayerMemory& memory) {
    return {.scale = values(memory, 0), .shift = values(memory, 1)};
  }
  void* residual_scratch(const LayerMemory& memory) const {
    return static_cast<std::byte*>(memory.scratch) + align_up(kernel_->scratch_bytes());
  }

  std::unique_ptr<BatchNormKernel> kernel_;
  bool adds_residual_;
  bool goes_backward_;
  ReorderedInput residual_;
};

class PoolingLayer final : public PlannedLayer {
 public:
  explicit PoolingLayer(std::unique_ptr<PoolingKernel> kernel) : kernel_(std::move(kernel)) {
    output_ = kernel_->output();
  }

  std::size_t saved_bytes() const override { return kernel_->saved_bytes(); }
  std::size_t scratch_bytes() const override { return kernel_->scratch_bytes(); }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    void* saved = pass.mode == Mode::training ? memory.saved : nullptr;
    kernel_->forward(pass.stream, memory.inputs[0], memory.outputs[0], saved, memory.scratch);
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    if (memory.input_gradients[0] == nullptr) return;
    kernel_->backward(pass.stream, memory.output_gradients[0], memory.saved, memory.input_gradients[0],
                      memory.scratch);
  }

 private:
  std::unique_ptr<PoolingKernel> kernel_;
};

// An activation that would change padding computes in the plain layout.
class ActivationLayer final : public PlannedLayer {
 public:
  ActivationLayer(const LayerContext& context, Activation activation, const Layout& input)
      : backend_(context.backend), activation_(activation), applied_(context.applied) {
    output_ = input;
    if (keeps_zero(activation) || input.physical_elements() == input.shape().elements()) return;
    output_ = Layout(input.shape(), input.dtype());
    input_ = ReorderedInput(backend_, input, output_);
  }

  std::size_t scratch_bytes() const override { return input_.scratch_bytes(); }
  bool backward_reads_input(int) const override { return reads_input(activation_); }
  bool backward_reads_output() const override { return !reads_input(activation_); }
  Sharing output_sharing() const override {
    if (applied_) return Sharing::same;
    return reads_input(activation_) || input_.reorders() ? Sharing::none : Sharing::in_place;
  }
  Sharing gradient_sharing(int) const override {
    return input_.reorders() ? Sharing::none : Sharing::in_place;
  }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    if (applied_) return;
    void* y = memory.outputs[0];
    backend_.activation_forward(pass.stream, {.activation = activation_,
                                              .type = output_.dtype(),
                                              .count = output_.physical_elements(),
                                              .x = input_.read(pass, memory.inputs[0], y),
                                              .y = y});
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    void* x_gradient = memory.input_gradients[0];
    if (x_gradient == nullptr) return;
    backend_.activation_backward(pass.stream,
                                 {.activation = activation_,
                                  .type = output_.dtype(),
                                  .count = output_.physical_elements(),
                                  .y = reads_input(activation_) ? memory.inputs[0] : memory.outputs[0],
                                  .y_gradient = memory.output_gradients[0],
                                  .x_gradient = input_.gradient(x_gradient, memory.scratch)});
    input_.written(pass, x_gradient, memory.scratch);
  }

 private:
  Backend& backend_;
  Activation activation_;
  bool applied_;
  ReorderedInput input_;
};

// The second input may have another layout than the first; it is converted in scratch memory.
class AddLayer final : public PlannedLayer {
 public:
  AddLayer(Backend& backend, const Layout& a, const Layout& b) : backend_(backend), b_(backend, b, a) {
    output_ = a;
  }

  std::size_t scratch_bytes() const override { return b_.scratch_bytes(); }
  Sharing output_sharing() const override { return Sharing::in_place; }
  Sharing gradient_sharing(int input) const override {
    return input == 0 || !b_.reorders() ? Sharing::same : Sharing::none;
  }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    backend_.add(pass.stream, {.type = output_.dtype(),
                               .count = output_.physical_elements(),
                               .a = memory.inputs[0],
                               .b = b_.read(pass, memory.inputs[1], memory.scratch),
                               .sum = memory.outputs[0]});
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    b_.written(pass, memory.input_gradients[1], memory.output_gradients[0]);
  }

 private:
  Backend& backend_;
  ReorderedInput b_;
};

class ForkLayer final : public PlannedLayer {
 public:
  ForkLayer(Backend& backend, const Layout& input) : backend_(backend) { output_ = input; }

  Sharing output_sharing() const override { return Sharing::same; }
  Sharing gradient_sharing(int) const override { return Sharing::in_place; }

  void forward(const Pass&, const LayerMemory&) override {}
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    if (memory.input_gradients[0] == nullptr || memory.addend != nullptr) return;
    backend_.add(pass.stream, {.type = output_.dtype(),
                               .count = output_.physical_elements(),
                               .a = memory.output_gradients[0],
                               .b = memory.output_gradients[1],
                               .sum = memory.input_gradients[0]});
  }

 private:
  Backend& backend_;
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_layer(const LayerContext& context, const Operation& operation,
                                         std::span<const Layout> inputs) {
  const Layout& x = inputs[0];
  const Shape& in = x.shape();
  struct Visitor {
    const LayerContext& context;
    Backend& backend;
    std::span<const Layout> inputs;
    const Layout& x;
    const Shape& in;

    std::unique_ptr<PlannedLayer> operator()(const ConvolutionOptions& o) const {
      const ConvolutionShape shape{.batch = in[0],
                                   .in_channels = in[1],
                                   .in_height = in[2],
                                   .in_width = in[3],
                                   .out_channels = o.channels,
                                   .kernel = o.kernel,
                                   .stride = o.stride,
                                   .padding = o.padding,
                                   .dilation = o.dilation,
                                   .groups = o.groups,
                                   .bias = o.bias,
                                   .activation = context.activation,
                                   .input_gradient = context.input_gradient,
                                   .adds_input_gradient = context.adds_input_gradient,
                                   .weight_gradient = !context.frozen,
                                   .tf32 = context.tf32};
      // Fans as in torch.nn.init, from the weights' shape: only the inputs are divided by groups.
      const std::int64_t window = o.kernel * o.kernel;
      return std::make_unique<AffineLayer>(context, backend.convolution(shape, x, context.choices),
                                           in[1] / o.groups * window, o.channels * window, o.channels, o.bias,
                                           o.initialization, o.l2);
    }
    std::unique_ptr<PlannedLayer> operator()(const LinearOptions& o) const {
      const LinearShape shape{.batch = in[0],
                              .in_features = in.elements() / in[0],
                              .out_features = o.features,
                              .bias = o.bias,
                              .activation = context.activation,
                              .input_gradient = context.input_gradient,
                              .weight_gradient = !context.frozen,
                              .tf32 = context.tf32};
      return std::make_unique<AffineLayer>(context, backend.linear(shape, x, context.choices),
                                           shape.in_features, o.features, o.features, o.bias,
                                           o.initialization, o.l2);
    }
    std::unique_ptr<PlannedLayer> operator()(const LayerNormOptions& o) const {
      return plan_layer_norm(context, o, x);
    }
    std::unique_ptr<PlannedLayer> operator()(BatchNormOptions o) const {
      o.frozen = context.frozen;
      o.ranks = o.frozen ? 1 : context.batch_norm_ranks;
      return std::make_unique<BatchNormLayer>(context, o, inputs);
    }
    std::unique_ptr<PlannedLayer> operator()(const PoolingOptions& o) const {
      return std::make_unique<PoolingLayer>(backend.pooling(o, x));
    }
    std::unique_ptr<PlannedLayer> operator()(const ActivationOptions& o) const {
      return std::make_unique<ActivationLayer>(context, o.activation, x);
    }
    std::unique_ptr<PlannedLayer> operator()(const AddOptions&) const {
      return std::make_unique<AddLayer>(backend, x, inputs[1]);
    }
    std::unique_ptr<PlannedLayer> operator()(const SoftmaxOptions&) const { return plan_softmax(backend, x); }
    std::unique_ptr<PlannedLayer> operator()(const FlattenOptions&) const { return plan_flatten(backend, x); }
    std::unique_ptr<PlannedLayer> operator()(const UpsamplingOptions& o) const {
      return plan_upsampling(backend, o.factor, x);
    }
    std::unique_ptr<PlannedLayer> operator()(const ConcatenateOptions&) const {
      return plan_concatenation(backend, x, inputs[1]);
    }
    std::unique_ptr<PlannedLayer> operator()(const PixelsOptions&) const { return plan_pixels(backend, x); }
    std::unique_ptr<PlannedLayer> operator()(const DropoutOptions& o) const {
      return plan_dropout(backend, o, x);
    }
  };
  return std::visit(Visitor{context, context.backend, inputs, x, in}, operation);
}

std::unique_ptr<PlannedLayer> plan_fork(Backend& backend, const Layout& input) {
  return std::make_unique<ForkLayer>(backend, input);
}

}  // namespace lockstep
