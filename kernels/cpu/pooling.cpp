// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/error.h"
#include "core/tensor/buffer.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/max_pooling.h"
#include "kernels/cpu/onednn.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

using dnnl::memory;

PoolingWindow window_of(const PoolingOptions& o, const Shape& in) {
  if (o.global) return {.strides = {1, 1}, .kernel = {in[2], in[3]}, .padding = {0, 0}};
  return {.strides = {o.stride, o.stride}, .kernel = {o.kernel, o.kernel}, .padding = {o.padding, o.padding}};
}

// saved: the position of each maximum. Computes in fp32, so that sums over overlapping windows are rounded
// once; half tensors are converted in scratch memory, placed after oneDNN's own.
class CpuPooling final : public PoolingKernel {
 public:
  CpuPooling(const PoolingOptions& options, const Layout& input) {
    input_ = input;
    const Shape& in = input.shape();
    const Shape out{in[0], in[1], options.out_size(in[2]), options.out_size(in[3])};
    const PoolingWindow w = window_of(options, in);
    const auto algorithm = options.kind == PoolingKind::max ? dnnl::algorithm::pooling_max
                                                            : dnnl::algorithm::pooling_avg_exclude_padding;
    const memory::desc source = onednn::with_type(to_desc(input), memory::data_type::f32);
    const memory::desc any({out[0], out[1], out[2], out[3]}, memory::data_type::f32, memory::format_tag::any);
    const dnnl::primitive_attr attributes = scratchpad_attributes();
    const dnnl::engine& engine = onednn_engine();

    const memory::dims dense = {0, 0};  // oneDNN counts the gaps between a window's elements
    const auto forward = [&](dnnl::prop_kind kind, const memory::desc& destination) {
      return onednn::describe<onednn::PoolingForward>(engine, attributes, kind, algorithm, source,
                                                      destination, w.strides, w.kernel, dense, w.padding,
                                                      w.padding);
    };
    const auto training = forward(dnnl::prop_kind::forward_training, any);
    const memory::desc destination = training.dst_desc();
    const auto inference = forward(dnnl::prop_kind::forward_inference, destination);
    const auto backward = onednn::describe_backward<onednn::PoolingBackward>(
        engine, attributes, training, algorithm, source, destination, w.strides, w.kernel, dense, w.padding,
        w.padding);

    output_ = to_layout(out, onednn::with_type(destination, to_dnnl(input.dtype())));
    saved_bytes_ = training.workspace_desc().get_size();
    if (options.kind == PoolingKind::max)
      maximum_ = CpuMaxPooling(w, in, out, source, destination, training.workspace_desc());
    is_max_ = options.kind == PoolingKind::max;
    const std::size_t primitives =
        std::max({training.scratchpad_desc().get_size(), inference.scratchpad_desc().get_size(),
                  backward.scratchpad_desc().get_size()});
    wide_input_ = align_up(primitives);
    wide_output_ = wide_input_ + align_up(source.get_size());
    const bool widens = is_cast() && !(is_max_ && maximum_.has_gradient());
    scratch_bytes_ = widens ? wide_output_ + align_up(destination.get_size()) : primitives;
    training_ =
        Primitive(onednn::PoolingForward(training), {{DNNL_ARG_SRC, source},
                                                     {DNNL_ARG_DST, destination},
                                                     {DNNL_ARG_SCRATCHPAD, training.scratchpad_desc()},
                                                     {DNNL_ARG_WORKSPACE, training.workspace_desc()}});
    inference_ =
        Primitive(onednn::PoolingForward(inference), {{DNNL_ARG_SRC, source},
                                                      {DNNL_ARG_DST, destination},
                                                      {DNNL_ARG_SCRATCHPAD, inference.scratchpad_desc()}});
    backward_ =
        Primitive(onednn::PoolingBackward(backward), {{DNNL_ARG_DIFF_DST, destination},
                                                      {DNNL_ARG_DIFF_SRC, source},
                                                      {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()},
                                                      {DNNL_ARG_WORKSPACE, backward.workspace_desc()}});
  }

  // Evaluation passes no saved memory.
  void forward(Stream&, const void* input, void* output, void* saved, void* scratch) override {
    if (is_max_ && (!maximum_.is_slow() || !is_finite(input)))
      return maximum_.run(input_.dtype(), input, output, saved);
    const void* from = widened(input_, input, scratch, wide_input_);
    void* to = is_cast() ? at(scratch, wide_output_) : output;
    if (saved_bytes_ == 0 || saved == nullptr) {
      inference_.run({from, to, scratch});
    } else {
      training_.run({from, to, scratch, saved});
    }
    if (is_cast()) round(output_, to, output);
  }

  void backward(Stream&, const void* output_gradient, const void* saved, void* input_gradient,
                void* scratch) override {
    CHECK(saved_bytes_ == 0 || saved != nullptr,
          "backward of max pooling needs the memory that forward saved");
    if (is_max_ && maximum_.has_gradient())
      return maximum_.run_gradient(input_.dtype(), output_gradient, saved, input_gradient);
    const void* from = widened(output_, output_gradient, scratch, wide_output_);
    void* to = is_cast() ? at(scratch, wide_input_) : input_gradient;
    backward_.run({from, to, scratch, saved});
    if (is_cast()) round(input_, to, input_gradient);
  }

 private:
  static void* at(void* scratch, std::size_t offset) { return static_cast<std::byte*>(scratch) + offset; }
  bool is_cast() const { return input_.dtype() != DType::f32; }

  bool is_finite(const void* input) const {
    std::int32_t finite = 1;
    cpu_check_finite(
        {.type = input_.dtype(), .count = input_.physical_elements(), .values = input, .finite = &finite});
    return finite != 0;
  }

  const void* widened(const Layout& layout, const void* data, void* scratch, std::size_t place) const {
    if (!is_cast()) return data;
    cpu_cast({.count = layout.physical_elements(),
              .from_type = layout.dtype(),
              .to_type = DType::f32,
              .from = data,
              .to = at(scratch, place)});
    return at(scratch, place);
  }
  void round(const Layout& layout, const void* wide, void* data) const {
    cpu_cast({.count = layout.physical_elements(),
              .from_type = DType::f32,
              .to_type = layout.dtype(),
              .from = wide,
              .to = data});
  }

  std::size_t wide_input_ = 0;  // offsets in scratch
  std::size_t wide_output_ = 0;
  bool is_max_ = false;
  CpuMaxPooling maximum_;
  Primitive training_;
  Primitive inference_;
  Primitive backward_;
};

}  // namespace

std::unique_ptr<PoolingKernel> CpuBackend::pooling(const PoolingOptions& options, const Layout& input) {
  check_pooling(options, input);
  return plan_with_onednn(fmt::format("pooling of {}", to_string(input.shape())),
                          [&] { return std::make_unique<CpuPooling>(options, input); });
}

}  // namespace lockstep
