// SPDX-License-Identifier: Apache-2.0
#include "models/softmax_layer.h"

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
    if (input.is_plain()) return;
    to_plain_ = backend.reorder(input, output_);
    from_plain_ = backend.reorder(output_, input);
  }

  std::size_t scratch_bytes() const override { return from_plain_ ? output_.bytes() : 0; }
  bool backward_reads_output() const override { return true; }
  Sharing output_sharing() const override { return to_plain_ ? Sharing::none : Sharing::in_place; }
  Sharing gradient_sharing(int) const override { return from_plain_ ? Sharing::none : Sharing::in_place; }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    const void* x = memory.inputs[0];
    if (to_plain_) {
      to_plain_->run(pass.stream, x, memory.outputs[0]);
      x = memory.outputs[0];
    }
    backend_.softmax_forward(pass.stream, {.shape = shape_, .x = x, .y = memory.outputs[0]});
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    void* x_gradient = memory.input_gradients[0];
    if (x_gradient == nullptr) return;
    void* plain = from_plain_ ? memory.scratch : x_gradient;
    backend_.softmax_backward(pass.stream, {.shape = shape_,
                                            .y = memory.outputs[0],
                                            .y_gradient = memory.output_gradients[0],
                                            .x_gradient = plain});
    if (from_plain_) from_plain_->run(pass.stream, plain, x_gradient);
  }

 private:
  Backend& backend_;
  SoftmaxShape shape_;
  std::unique_ptr<ReorderKernel> to_plain_;  // null: the input is plain
  std::unique_ptr<ReorderKernel> from_plain_;
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_softmax(Backend& backend, const Layout& input) {
  return std::make_unique<SoftmaxLayer>(backend, input);
}

}  // namespace lockstep
