// SPDX-License-Identifier: Apache-2.0
#include "models/layer_norm_layer.h"

#include "models/reordered_input.h"

namespace lockstep {
namespace {

class LayerNormLayer final : public PlannedLayer {
 public:
  LayerNormLayer(const LayerContext& context, const LayerNormOptions& options, const Layout& input)
      : backend_(context.backend), epsilon_(options.epsilon), frozen_(context.frozen) {
    const Shape& in = input.shape();
    output_ = Layout(in, input.dtype());
    // As in PyTorch: the shape of a sample.
    const Layout sample(Shape(in.dims().subspan(1)), DType::f32);
    parameter_specs_ = {{.suffix = "weight", .layout = sample, .constant = 1.0f, .of_norm = true},
                        {.suffix = "bias", .layout = sample, .of_norm = true}};
    input_ = ReorderedInput(backend_, input, output_);
  }

  std::size_t saved_bytes() const override {
    return static_cast<std::size_t>(output_.shape()[0]) * sizeof(LayerNormMoments);
  }
  // The input and its gradient, plain.
  std::size_t scratch_bytes() const override { return 2 * input_.scratch_bytes(); }
  bool backward_reads_input(int) const override { return true; }
  Sharing gradient_sharing(int) const override {
    return input_.reorders() ? Sharing::none : Sharing::in_place;
  }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    backend_.layer_norm_forward(pass.stream,
                                {.batch = batch(),
                                 .features = features(),
                                 .type = output_.dtype(),
                                 .epsilon = epsilon_,
                                 .x = input_.read(pass, memory.inputs[0], memory.scratch),
                                 .scale = memory.parameters[0]->value,
                                 .shift = memory.parameters[1]->value,
                                 .y = memory.outputs[0],
                                 .moments = pass.mode == Mode::training ? moments(memory) : nullptr});
  }
  void backward_parameters(const Pass& pass, const LayerMemory& memory) override {
    if (frozen_) return;
    LayerNormBackward arguments = backward_of(pass, memory);
    arguments.scale_gradient = static_cast<float*>(memory.parameters[0]->gradient);
    arguments.shift_gradient = static_cast<float*>(memory.parameters[1]->gradient);
    backend_.layer_norm_backward(pass.stream, arguments);
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    void* x_gradient = memory.input_gradients[0];
    if (x_gradient == nullptr) return;
    LayerNormBackward arguments = backward_of(pass, memory);
    void* scratch = static_cast<std::byte*>(memory.scratch) + input_.scratch_bytes();
    arguments.x_gradient = input_.gradient(x_gradient, scratch);
    backend_.layer_norm_backward(pass.stream, arguments);
    input_.written(pass, x_gradient, scratch);
  }

 private:
  std::int64_t batch() const { return output_.shape()[0]; }
  std::int64_t features() const { return output_.shape().elements() / batch(); }
  static LayerNormMoments* moments(const LayerMemory& memory) {
    return static_cast<LayerNormMoments*>(memory.saved);
  }
  LayerNormBackward backward_of(const Pass& pass, const LayerMemory& memory) {
    return {.batch = batch(),
            .features = features(),
            .type = output_.dtype(),
            .x = input_.read(pass, memory.inputs[0], memory.scratch),
            .y_gradient = memory.output_gradients[0],
            .scale = memory.parameters[0]->value,
            .moments = moments(memory),
            .write = pass.gradients};
  }

  Backend& backend_;
  float epsilon_;
  bool frozen_;
  ReorderedInput input_;  // plain
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_layer_norm(const LayerContext& context, const LayerNormOptions& options,
                                              const Layout& input) {
  return std::make_unique<LayerNormLayer>(context, options, input);
}

}  // namespace lockstep
