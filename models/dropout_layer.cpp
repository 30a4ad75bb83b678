// SPDX-License-Identifier: Apache-2.0
#include "models/dropout_layer.h"

namespace lockstep {
namespace {

class DropoutLayer final : public PlannedLayer {
 public:
  DropoutLayer(Backend& backend, const DropoutOptions& options, const Layout& input)
      : backend_(backend),
        purpose_("dropout " + options.purpose),
        probability_(static_cast<float>(options.probability)) {
    output_ = Layout(input.shape(), input.dtype());
    if (input.is_plain()) return;
    to_plain_ = backend.reorder(input, output_);
    from_plain_ = backend.reorder(output_, input);
  }

  std::size_t scratch_bytes() const override { return from_plain_ ? output_.bytes() : 0; }
  Sharing output_sharing() const override { return to_plain_ ? Sharing::none : Sharing::in_place; }
  Sharing gradient_sharing(int) const override { return from_plain_ ? Sharing::none : Sharing::in_place; }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    const void* x = memory.inputs[0];
    void* y = memory.outputs[0];
    if (to_plain_) {
      to_plain_->run(pass.stream, x, y);
      x = y;
    }
    if (pass.mode == Mode::training) {
      apply(pass, memory, x, y);
    } else if (x != y) {
      pass.stream.copy(y, x, output_.bytes());
    }
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    void* x_gradient = memory.input_gradients[0];
    if (x_gradient == nullptr) return;
    apply(pass, memory, memory.output_gradients[0], from_plain_ ? memory.scratch : x_gradient);
    if (from_plain_) from_plain_->run(pass.stream, memory.scratch, x_gradient);
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
  std::unique_ptr<ReorderKernel> to_plain_;  // null: the input is plain
  std::unique_ptr<ReorderKernel> from_plain_;
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_dropout(Backend& backend, const DropoutOptions& options,
                                           const Layout& input) {
  return std::make_unique<DropoutLayer>(backend, options, input);
}

}  // namespace lockstep
