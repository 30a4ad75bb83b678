// SPDX-License-Identifier: Apache-2.0
#include "models/flatten_layer.h"

namespace lockstep {
namespace {

// The elements of the input in the order of `rows`, as a matrix.
class MatrixLayer final : public PlannedLayer {
 public:
  MatrixLayer(Backend& backend, const Layout& input, const Layout& rows, const Shape& matrix) {
    output_ = Layout(matrix, input.dtype());
    if (input == rows) return;
    to_rows_ = backend.reorder(input, rows);
    from_rows_ = backend.reorder(rows, input);
  }

  Sharing output_sharing() const override { return to_rows_ ? Sharing::none : Sharing::same; }
  Sharing gradient_sharing(int) const override { return from_rows_ ? Sharing::none : Sharing::same; }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    if (to_rows_) to_rows_->run(pass.stream, memory.inputs[0], memory.outputs[0]);
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    if (from_rows_ && memory.input_gradients[0] != nullptr)
      from_rows_->run(pass.stream, memory.output_gradients[0], memory.input_gradients[0]);
  }

 private:
  std::unique_ptr<ReorderKernel> to_rows_;  // null: the input already is in this order
  std::unique_ptr<ReorderKernel> from_rows_;
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_flatten(Backend& backend, const Layout& input) {
  const Shape& in = input.shape();
  return std::make_unique<MatrixLayer>(backend, input, Layout(in, input.dtype()),
                                       Shape{in[0], in.elements() / in[0]});
}

std::unique_ptr<PlannedLayer> plan_pixels(Backend& backend, const Layout& input) {
  const Shape& in = input.shape();
  return std::make_unique<MatrixLayer>(backend, input, backend.pixel_rows(in, input.dtype()),
                                       Shape{in[0] * in[2] * in[3], in[1]});
}

}  // namespace lockstep
