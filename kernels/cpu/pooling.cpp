// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/error.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/layout.h"

namespace lockstep {
namespace {

using dnnl::memory;

class CpuPooling final : public PoolingKernel {
 public:
  CpuPooling(const PoolingOptions& options, const Layout& input) {
    input_ = input;
    const Shape& in = input.shape();
    const std::int64_t kernel_h = options.global ? in[2] : options.kernel;
    const std::int64_t kernel_w = options.global ? in[3] : options.kernel;
    const std::int64_t stride = options.global ? 1 : options.stride;
    const std::int64_t padding = options.global ? 0 : options.padding;
    const Shape out{in[0], in[1], options.out_size(in[2]), options.out_size(in[3])};
    const auto algorithm = options.kind == PoolingKind::max ? dnnl::algorithm::pooling_max
                                                            : dnnl::algorithm::pooling_avg_exclude_padding;
    const memory::dims strides{stride, stride};
    const memory::dims kernel{kernel_h, kernel_w};
    const memory::dims pad{padding, padding};
    const memory::desc source = to_desc(input);
    const memory::desc any(memory::dims(out.dims().begin(), out.dims().end()), memory::data_type::f32,
                           memory::format_tag::any);
    const dnnl::primitive_attr attributes = scratchpad_attributes();
    const dnnl::engine& engine = onednn_engine();

    const dnnl::pooling_forward::primitive_desc training(
        {dnnl::prop_kind::forward_training, algorithm, source, any, strides, kernel, pad, pad}, attributes,
        engine);
    const memory::desc destination = training.dst_desc();
    const dnnl::pooling_forward::primitive_desc inference(
        {dnnl::prop_kind::forward_inference, algorithm, source, destination, strides, kernel, pad, pad},
        attributes, engine);
    const dnnl::pooling_backward::primitive_desc backward(
        {algorithm, source, destination, strides, kernel, pad, pad}, attributes, engine, training);
    output_ = to_layout(out, destination);
    saved_bytes_ = training.workspace_desc().get_size();
    training_ = Primitive(dnnl::pooling_forward(training), {{DNNL_ARG_SRC, source},
                                                            {DNNL_ARG_DST, destination},
                                                            {DNNL_ARG_SCRATCHPAD, training.scratchpad_desc()},
                                                            {DNNL_ARG_WORKSPACE, training.workspace_desc()}});
    inference_ =
        Primitive(dnnl::pooling_forward(inference), {{DNNL_ARG_SRC, source},
                                                     {DNNL_ARG_DST, destination},
                                                     {DNNL_ARG_SCRATCHPAD, inference.scratchpad_desc()}});
    backward_ =
        Primitive(dnnl::pooling_backward(backward), {{DNNL_ARG_DIFF_DST, destination},
                                                     {DNNL_ARG_DIFF_SRC, source},
                                                     {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()},
                                                     {DNNL_ARG_WORKSPACE, backward.workspace_desc()}});
    scratch_bytes_ = std::max({training.scratchpad_desc().get_size(), inference.scratchpad_desc().get_size(),
                               backward.scratchpad_desc().get_size()});
  }

  // Without saved memory nothing is remembered for a backward.
  void forward(Stream&, const void* input, void* output, void* saved, void* scratch) override {
    saved_bytes_ > 0 && saved != nullptr ? training_.run({input, output, scratch, saved})
                                         : inference_.run({input, output, scratch});
  }
  void backward(Stream&, const void* output_gradient, const void* saved, void* input_gradient,
                void* scratch) override {
    backward_.run({output_gradient, input_gradient, scratch, saved});
  }

 private:
  Primitive training_;
  Primitive inference_;
  Primitive backward_;
};

void validate(const PoolingOptions& o, const Layout& input) {
  const Shape& in = input.shape();
  if (in.rank() != 4)
    throw ConfigError(fmt::format("pooling: the input is {}, expected [N, C, H, W]", to_string(in)));
  if (o.global) return;
  const bool fits = o.kernel > 0 && o.stride > 0 && o.padding >= 0 && 2 * o.padding <= o.kernel &&
                    in[2] + 2 * o.padding >= o.kernel && in[3] + 2 * o.padding >= o.kernel;
  if (!fits) {
    throw ConfigError(fmt::format("pooling: window {} with stride {} and padding {} does not fit {}",
                                  o.kernel, o.stride, o.padding, to_string(in)));
  }
}

}  // namespace

std::unique_ptr<PoolingKernel> make_cpu_pooling(const PoolingOptions& options, const Layout& input) {
  validate(options, input);
  return plan_with_onednn(fmt::format("pooling of {}", to_string(input.shape())),
                          [&] { return std::make_unique<CpuPooling>(options, input); });
}

}  // namespace lockstep
