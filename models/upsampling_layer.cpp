// SPDX-License-Identifier: Apache-2.0
#include "models/upsampling_layer.h"

#include "models/reordered_input.h"

namespace lockstep {
namespace {

class UpsamplingLayer final : public PlannedLayer {
 public:
  UpsamplingLayer(Backend& backend, std::int64_t factor, const Layout& input)
      : UpsamplingLayer(backend, backend.plan_upsampling(factor, input), input) {}

  std::size_t scratch_bytes() const override { return input_.scratch_bytes(); }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    backend_.upsample_forward(
        pass.stream,
        {.shape = shape_, .x = input_.read(pass, memory.inputs[0], memory.scratch), .y = memory.outputs[0]});
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    void* x_gradient = memory.input_gradients[0];
    if (x_gradient == nullptr) return;
    backend_.upsample_backward(pass.stream, {.shape = shape_,
                                             .y_gradient = memory.output_gradients[0],
                                             .x_gradient = input_.gradient(x_gradient, memory.scratch)});
    input_.written(pass, x_gradient, memory.scratch);
  }

 private:
  UpsamplingLayer(Backend& backend, const UpsamplingPlan& plan, const Layout& input)
      : backend_(backend), shape_(plan.shape), input_(backend, input, plan.input) {
    output_ = plan.output;
  }

  Backend& backend_;
  UpsamplingShape shape_;
  ReorderedInput input_;
};

class ConcatenationLayer final : public PlannedLayer {
 public:
  ConcatenationLayer(Backend& backend, const Layout& a, const Layout& b)
      : ConcatenationLayer(backend, backend.plan_concatenation(a, b), a, b) {}

  std::size_t scratch_bytes() const override { return a_.scratch_bytes() + b_.scratch_bytes(); }

  void forward(const Pass& pass, const LayerMemory& memory) override {
    backend_.concatenate(pass.stream, {.shape = shape_,
                                       .a = a_.read(pass, memory.inputs[0], memory.scratch),
                                       .b = b_.read(pass, memory.inputs[1], scratch_of_b(memory)),
                                       .joined = memory.outputs[0]});
  }
  void backward_inputs(const Pass& pass, const LayerMemory& memory) override {
    const auto [a_gradient, b_gradient] = memory.input_gradients;
    if (a_gradient == nullptr && b_gradient == nullptr) return;
    backend_.separate(pass.stream, {.shape = shape_,
                                    .joined = memory.output_gradients[0],
                                    .a = a_.gradient(a_gradient, memory.scratch),
                                    .b = b_.gradient(b_gradient, scratch_of_b(memory))});
    a_.written(pass, a_gradient, memory.scratch);
    b_.written(pass, b_gradient, scratch_of_b(memory));
  }

 private:
  ConcatenationLayer(Backend& backend, const ConcatenationPlan& plan, const Layout& a, const Layout& b)
      : backend_(backend), shape_(plan.shape), a_(backend, a, plan.a), b_(backend, b, plan.b) {
    output_ = plan.output;
  }

  void* scratch_of_b(const LayerMemory& memory) const {
    return static_cast<std::byte*>(memory.scratch) + a_.scratch_bytes();
  }

  Backend& backend_;
  ConcatenationShape shape_;
  ReorderedInput a_, b_;
};

}  // namespace

std::unique_ptr<PlannedLayer> plan_upsampling(Backend& backend, std::int64_t factor, const Layout& input) {
  return std::make_unique<UpsamplingLayer>(backend, factor, input);
}

std::unique_ptr<PlannedLayer> plan_concatenation(Backend& backend, const Layout& a, const Layout& b) {
  return std::make_unique<ConcatenationLayer>(backend, a, b);
}

}  // namespace lockstep
