// SPDX-License-Identifier: Apache-2.0
#include "models/softmax_layer.h"

#include "models/reordered_input.h"

namespace lockstep {
namespace {

class SoftmaxLayer final : public PlannedLayer {
 public:
  SoftmaxLayer(Backend& backend, const Layout& input) : backend_(backend) {
    const Shape& in = input.shape();
    shape_ = {.batch = in[0],
              .channels = in[1],
              .positions = in.elements() / (in[0] * in[1]),
              .type = input.dtype()};
    output_ = Layout(in, input.dtype());
    input_ = ReorderedInput(backend, input, output_);
  }

  std::size_t scratch_bytes() const override { return input_.scratch_bytes(); }
  bool backward_reads_output() const override { return true; }
  Sharing output_sharing() const override { return input_.reorders() ? Sharing::none : Sharing::in_place; }
  Sharing gradient_sharing(int) const override { return output_sharing(); }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    void* y = memory.outputs[0];
    backend_.softmax_forward(pass.stream,
                             {.shape = shape_, .x = input_.read(pass, memory.inputs[0], y), .y = y});
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    void* x_gradient = memory.input_gradients[0];
    if (x_gradient == nullptr) return;
    backend_.softmax_backward(pass.stream, {.shape = shape_,
                                            .y = memory.outputs[0],
                                            .y_gradient = memory.output_gradients[0],
                                            .x_gradient = input_.gradient(x_gradient, memory.scratch)});
    input_.written(pass, x_gradient, memory.scratch);
  }

 private:
  Backend& backend_;
  SoftmaxShape shape_;
  ReorderedInput input_;  // plain
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_softmax(Backend& backend, const Layout& input) {
  return std::make_unique<SoftmaxLayer>(backend, input);
}

}  // namespace lockstep
