// SPDX-License-Identifier: Apache-2.0
#include "models/layer_norm_layer.h"

#include "core/tensor/buffer.h"

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
    if (input.is_plain()) return;
    to_plain_ = backend_.reorder(input, output_);
    from_plain_ = backend_.reorder(output_, input);
  }

  std::size_t saved_bytes() const override {
    return static_cast<std::size_t>(output_.shape()[0]) * sizeof(LayerNormMoments);
  }
  // The input and its gradient, plain.
  std::size_t scratch_bytes() const override {
    return to_plain_ ? align_up(output_.bytes()) + output_.bytes() : 0;
  }
  bool backward_reads_input(int) const override { return true; }
  Sharing gradient_sharing(int) const override { return from_plain_ ? Sharing::none : Sharing::in_place; }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    backend_.layer_norm_forward(pass.stream,
                                {.batch = batch(),
                                 .features = features(),
                                 .type = output_.dtype(),
                                 .epsilon = epsilon_,
                                 .x = plain_input(pass, memory),
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
    arguments.x_gradient =
        from_plain_ ? static_cast<std::byte*>(memory.scratch) + align_up(output_.bytes()) : x_gradient;
    backend_.layer_norm_backward(pass.stream, arguments);
    if (from_plain_) from_plain_->run(pass.stream, arguments.x_gradient, x_gradient);
  }

 private:
  std::int64_t batch() const { return output_.shape()[0]; }
  std::int64_t features() const { return output_.shape().elements() / batch(); }
  static LayerNormMoments* moments(const LayerMemory& memory) {
    return static_cast<LayerNormMoments*>(memory.saved);
  }
  const void* plain_input(const Pass& pass, const LayerMemory& memory) {
    if (!to_plain_) return memory.inputs[0];
    to_plain_->run(pass.stream, memory.inputs[0], memory.scratch);
    return memory.scratch;
  }
  LayerNormBackward backward_of(const Pass& pass, const LayerMemory& memory) {
    return {.batch = batch(),
            .features = features(),
            .type = output_.dtype(),
            .x = plain_input(pass, memory),
            .y_gradient = memory.output_gradients[0],
            .scale = memory.parameters[0]->value,
            .moments = moments(memory),
            .write = pass.gradients};
  }

  Backend& backend_;
  float epsilon_;
  bool frozen_;
  std::unique_ptr<ReorderKernel> to_plain_;  // null: the input is plain
  std::unique_ptr<ReorderKernel> from_plain_;
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_layer_norm(const LayerContext& context, const LayerNormOptions& options,
                                              const Layout& input) {
  return std::make_unique<LayerNormLayer>(context, options, input);
}

}  // namespace lockstep
