// SPDX-License-Identifier: Apache-2.0
#include "models/flatten_layer.h"

namespace lockstep {
namespace {

class FlattenLayer final : public PlannedLayer {
 public:
  FlattenLayer(Backend& backend, const Layout& input) {
    const Shape& in = input.shape();
    output_ = Layout({in[0], in.elements() / in[0]}, input.dtype());
    if (input.is_plain()) return;
    const Layout plain(in, input.dtype());
    to_plain_ = backend.reorder(input, plain);
    from_plain_ = backend.reorder(plain, input);
  }

  Sharing output_sharing() const override { return to_plain_ ? Sharing::none : Sharing::same; }
  Sharing gradient_sharing(int) const override { return from_plain_ ? Sharing::none : Sharing::same; }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    if (to_plain_) to_plain_->run(pass.stream, memory.inputs[0], memory.outputs[0]);
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    if (from_plain_ && memory.input_gradients[0] != nullptr)
      from_plain_->run(pass.stream, memory.output_gradients[0], memory.input_gradients[0]);
  }

 private:
  std::unique_ptr<ReorderKernel> to_plain_;  // null: the input is plain
  std::unique_ptr<ReorderKernel> from_plain_;
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_flatten(Backend& backend, const Layout& input) {
  return std::make_unique<FlattenLayer>(backend, input);
}

}  // namespace lockstep
