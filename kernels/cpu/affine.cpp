// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/affine.h"

#include <algorithm>

#include "core/buffer.h"
#include "core/error.h"
#include "kernels/cpu/kernels.h"

namespace lockstep {
namespace {

using dnnl::memory;

// Hands out pieces of scratch memory; counts what it handed out.
class ScratchPlanner {
 public:
  std::size_t take(std::size_t bytes) {
    const std::size_t offset = end_;
    end_ += align_up(bytes);
    return offset;
  }
  std::size_t bytes() const { return end_; }

 private:
  std::size_t end_ = 0;
};

std::byte* at(void* scratch, std::size_t offset) { return static_cast<std::byte*>(scratch) + offset; }

// A tensor between the layout its neighbours use and the one a primitive wants; nothing where they are the
// same.
class Bridge {
 public:
  Bridge() = default;
  Bridge(const memory::desc& from, const memory::desc& to, std::size_t staging_bytes, ScratchPlanner& scratch)
      : needed_(from != to) {
    if (!needed_) return;
    offset_ = scratch.take(staging_bytes);
    reorder_ =
        Primitive(dnnl::reorder(dnnl::reorder::primitive_desc(onednn_engine(), from, onednn_engine(), to)),
                  {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }

  // Before the primitive: where it finds the data.
  const void* in(const void* data, void* scratch) {
    if (!needed_) return data;
    reorder_.run({data, at(scratch, offset_)});
    return at(scratch, offset_);
  }
  // Where the primitive is to write, and, after it, on to where the data belongs.
  void* out(void* data, void* scratch) const { return needed_ ? at(scratch, offset_) : data; }
  void deliver(void* data, void* scratch) {
    if (needed_) reorder_.run({at(scratch, offset_), data});
  }

 private:
  bool needed_ = false;
  std::size_t offset_ = 0;
  Primitive reorder_;
};

class OneDnnAffine final : public AffineKernel {
 public:
  explicit OneDnnAffine(const AffinePlan& plan) : bias_(plan.bias), outputs_(plan.outputs) {
    input_ = plan.input;
    output_ = to_layout(plan.output_shape, plan.forward.destination);
    weights_ = to_layout(plan.weights_shape, plan.forward.weights);
    // A plain layout of the world's shape may have other dimensions inside (groups); memory is the same.
    const memory::desc input = with_dims_of(to_desc(input_), plan.forward.source);
    bias_desc_ = memory::desc({outputs_}, memory::data_type::f32, memory::format_tag::x);
    plan_forward(plan.forward, input);
    plan_backward_data(plan, input);
    plan_backward_weights(plan, input);
  }

  void forward(Stream&, const void* input, const void* weights, const float* bias, void* output,
               void* scratch) override {
    const void* source = forward_input_.in(input, scratch);
    void* pad = at(scratch, forward_pad_);
    bias_ ? forward_.run({source, weights, output, pad, bias}) : forward_.run({source, weights, output, pad});
  }

  void backward_data(Stream&, const void* output_gradient, const void* weights, void* input_gradient,
                     void* scratch) override {
    const void* destination = data_output_.in(output_gradient, scratch);
    const void* wanted = data_weights_.in(weights, scratch);
    backward_data_.run(
        {destination, wanted, data_input_.out(input_gradient, scratch), at(scratch, data_pad_)});
    data_input_.deliver(input_gradient, scratch);
  }

  void backward_weights(Stream&, const void* input, const void* output_gradient, void* weights_gradient,
                        float* bias_gradient, Write write, void* scratch) override {
    const void* source = weights_input_.in(input, scratch);
    const void* destination = weights_output_.in(output_gradient, scratch);
    const bool adds = write == Write::accumulate;
    void* weights_target = adds ? at(scratch, sum_weights_) : weights_gradient;
    float* bias_target = adds ? reinterpret_cast<float*>(at(scratch, sum_bias_)) : bias_gradient;
    void* wanted = weights_weights_.out(weights_target, scratch);
    void* pad = at(scratch, weights_pad_);
    bias_ ? backward_weights_.run({source, destination, wanted, pad, bias_target})
          : backward_weights_.run({source, destination, wanted, pad});
    weights_weights_.deliver(weights_target, scratch);
    if (!adds) return;
    auto* sum = static_cast<float*>(weights_gradient);
    cpu_add(weights_.physical_elements(), sum, static_cast<const float*>(weights_target), sum);
    if (bias_) cpu_add(outputs_, bias_gradient, bias_target, bias_gradient);
  }

 private:
  static memory::desc with_dims_of(const memory::desc& desc, const memory::desc& like) {
    return desc.dims() == like.dims() ? desc : desc.reshape(like.dims());
  }

  void plan_forward(const AffineDirection& direction, const memory::desc& input) {
    ScratchPlanner scratch;
    forward_input_ = Bridge(input, direction.source, direction.source.get_size(), scratch);
    forward_pad_ = scratch.take(direction.scratchpad.get_size());
    forward_ = primitive(direction,
                         {{DNNL_ARG_SRC, direction.source},
                          {DNNL_ARG_WEIGHTS, direction.weights},
                          {DNNL_ARG_DST, direction.destination},
                          {DNNL_ARG_SCRATCHPAD, direction.scratchpad}},
                         {DNNL_ARG_BIAS, bias_desc_});
    scratch_bytes_ = std::max(scratch_bytes_, scratch.bytes());
  }

  void plan_backward_data(const AffinePlan& plan, const memory::desc& input) {
    const AffineDirection& direction = plan.backward_data;
    ScratchPlanner scratch;
    data_output_ =
        Bridge(plan.forward.destination, direction.destination, direction.destination.get_size(), scratch);
    data_weights_ = Bridge(plan.forward.weights, direction.weights, direction.weights.get_size(), scratch);
    data_input_ = Bridge(direction.source, input, direction.source.get_size(), scratch);
    data_pad_ = scratch.take(direction.scratchpad.get_size());
    backward_data_ = Primitive(direction.primitive, {{DNNL_ARG_DIFF_DST, direction.destination},
                                                     {DNNL_ARG_WEIGHTS, direction.weights},
                                                     {DNNL_ARG_DIFF_SRC, direction.source},
                                                     {DNNL_ARG_SCRATCHPAD, direction.scratchpad}});
    scratch_bytes_ = std::max(scratch_bytes_, scratch.bytes());
  }

  void plan_backward_weights(const AffinePlan& plan, const memory::desc& input) {
    const AffineDirection& direction = plan.backward_weights;
    ScratchPlanner scratch;
    weights_input_ = Bridge(input, direction.source, direction.source.get_size(), scratch);
    weights_output_ =
        Bridge(plan.forward.destination, direction.destination, direction.destination.get_size(), scratch);
    weights_weights_ = Bridge(direction.weights, plan.forward.weights, direction.weights.get_size(), scratch);
    weights_pad_ = scratch.take(direction.scratchpad.get_size());
    sum_weights_ = scratch.take(weights_.bytes());
    sum_bias_ = scratch.take(bias_desc_.get_size());
    backward_weights_ = primitive(direction,
                                  {{DNNL_ARG_SRC, direction.source},
                                   {DNNL_ARG_DIFF_DST, direction.destination},
                                   {DNNL_ARG_DIFF_WEIGHTS, direction.weights},
                                   {DNNL_ARG_SCRATCHPAD, direction.scratchpad}},
                                  {DNNL_ARG_DIFF_BIAS, bias_desc_});
    scratch_bytes_ = std::max(scratch_bytes_, scratch.bytes());
  }

  using Arguments = std::initializer_list<Primitive::Argument>;
  Primitive primitive(const AffineDirection& direction, Arguments arguments,
                      const Primitive::Argument& bias) const {
    if (!bias_) return Primitive(direction.primitive, arguments);
    const auto* a = arguments.begin();
    return Primitive(direction.primitive, {a[0], a[1], a[2], a[3], bias});
  }

  bool bias_;
  std::int64_t outputs_;
  memory::desc bias_desc_;
  Primitive forward_;
  Bridge forward_input_;
  std::size_t forward_pad_ = 0;
  Primitive backward_data_;
  Bridge data_output_;
  Bridge data_weights_;
  Bridge data_input_;
  std::size_t data_pad_ = 0;
  Primitive backward_weights_;
  Bridge weights_input_;
  Bridge weights_output_;
  Bridge weights_weights_;
  std::size_t weights_pad_ = 0;
  std::size_t sum_weights_ = 0;
  std::size_t sum_bias_ = 0;
};

}  // namespace

std::unique_ptr<AffineKernel> make_onednn_affine(const AffinePlan& plan) {
  return std::make_unique<OneDnnAffine>(plan);
}

}  // namespace lockstep
