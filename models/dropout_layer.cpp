// SPDX-License-Identifier: Apache-2.0
#include "models/dropout_layer.h"

#include "models/reordered_input.h"

namespace lockstep {
namespace {

class DropoutLayer final : public PlannedLayer {
 public:
  DropoutLayer(Backend& backend, const DropoutOptions& options, const Layout& input)
      : backend_(backend),
        purpose_("dropout " + options.purpose),
        probability_(static_cast<float>(options.probability)) {
    output_ = Layout(input.shape(), input.dtype());
    input_ = ReorderedInput(backend, input, output_);
  }

  std::size_t scratch_bytes() const override { return input_.scratch_bytes(); }
  Sharing output_sharing() const override { return input_.reorders() ? Sharing::none : Sharing::in_place; }
  Sharing gradient_sharing(int) const override { return output_sharing(); }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    void* y = memory.outputs[0];
    const void* x = input_.read(pass, memory.inputs[0], y);
    if (pass.mode == Mode::training) {
      apply(pass, memory, x, y);
    } else if (x != y) {
      pass.stream.copy(y, x, output_.bytes());
    }
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    void* x_gradient = memory.input_gradients[0];
    if (x_gradient == nullptr) return;
    apply(pass, memory, memory.output_gradients[0], input_.gradient(x_gradient, memory.scratch));
    input_.written(pass, x_gradient, memory.scratch);
  }

 private:
  void apply(const Pass& pass, const LayerMemory& memory, const void* x, void* y) {
    const std::int64_t batch = output_.shape()[0];
    backend_.dropout(pass.stream, {.batch = batch,
                                   .features = output_.shape().elements() / batch,
                                   .samples = memory.samples,
                                   .key = key_for(memory.seed, purpose_),
                                   .probability = probability_,
                                   .type = output_.dtype(),
                                   .x = x,
                                   .y = y});
  }

  Backend& backend_;
  std::string purpose_;
  float probability_;
  ReorderedInput input_;  // plain
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_dropout(Backend& backend, const DropoutOptions& options,
                                           const Layout& input) {
  return std::make_unique<DropoutLayer>(backend, options, input);
}

}  // namespace lockstep
