// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/buffer.h"
#include "core/error.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/layout.h"

namespace lockstep {
namespace {

using dnnl::memory;
using dnnl::normalization_flags;

// [N, C] is [N, C, 1, 1].
memory::desc image_desc(const Layout& input) {
  const Shape& shape = input.shape();
  if (shape.rank() == 4) return to_desc(input);
  CHECK(input.is_plain(), "batch norm of {}", input.describe());
  return plain_desc({shape[0], shape[1], 1, 1}, DType::f32);
}

// saved: mean [C], variance [C], then oneDNN's ReLU mask. scratch: two [C] gradients, then oneDNN's own.
class CpuBatchNorm final : public BatchNormKernel {
 public:
  CpuBatchNorm(const BatchNormOptions& options, const Layout& input)
      : momentum_(options.momentum), channels_(input.shape()[1]) {
    layout_ = input;
    const auto samples = static_cast<double>(input.shape().elements() / channels_);  // of each channel
    unbiased_ = static_cast<float>(samples > 1 ? samples / (samples - 1) : 1.0);
    row_bytes_ = align_up(static_cast<std::size_t>(channels_) * sizeof(float));
    plan(options, image_desc(input));
  }

  void forward_training(Stream&, const void* x, BatchNormParameters parameters, BatchNormStatistics running,
                        void* y, void* saved, void* scratch) override {
    const float* mean = row(saved, 0);
    const float* variance = row(saved, 1);
    training_.run({x, parameters.scale, parameters.shift, mean, variance, y, row(scratch, 2), row(saved, 2)});
    const float keep = 1.0f - momentum_;
    for (std::int64_t c = 0; c < channels_; ++c) {
      running.mean[c] = keep * running.mean[c] + momentum_ * mean[c];
      running.variance[c] = keep * running.variance[c] + momentum_ * (unbiased_ * variance[c]);
    }
  }

  void forward_evaluation(Stream&, const void* x, BatchNormParameters parameters, BatchNormStatistics running,
                          void* y, void* scratch) override {
    evaluation_.run(
        {x, parameters.scale, parameters.shift, running.mean, running.variance, y, row(scratch, 2)});
  }

  void backward(Stream&, const void* x, const void* y_gradient, BatchNormParameters parameters,
                const void* saved, void* x_gradient, float* scale_gradient, float* shift_gradient,
                Write write, void* scratch) override {
    const bool adds = write == Write::accumulate;
    float* scale_target = adds ? row(scratch, 0) : scale_gradient;
    float* shift_target = adds ? row(scratch, 1) : shift_gradient;
    auto* kept = const_cast<void*>(saved);  // only read
    backward_.run({x, row(kept, 0), row(kept, 1), y_gradient, parameters.scale, parameters.shift, x_gradient,
                   scale_target, shift_target, row(scratch, 2), row(kept, 2)});
    if (!adds) return;
    cpu_add(channels_, scale_gradient, scale_target, scale_gradient);
    cpu_add(channels_, shift_gradient, shift_target, shift_gradient);
  }

 private:
  float* row(void* memory, std::size_t index) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory) + index * row_bytes_);
  }

  void plan(const BatchNormOptions& options, const memory::desc& data) {
    const dnnl::primitive_attr attributes = scratchpad_attributes();
    const dnnl::engine& engine = onednn_engine();
    const auto affine = normalization_flags::use_scale | normalization_flags::use_shift;
    const auto flags =
        options.activation == Activation::relu ? affine | normalization_flags::fuse_norm_relu : affine;
    const memory::desc channel({channels_}, memory::data_type::f32, memory::format_tag::x);

    const dnnl::batch_normalization_forward::primitive_desc training(
        {dnnl::prop_kind::forward_training, data, options.epsilon, flags}, attributes, engine);
    const dnnl::batch_normalization_forward::primitive_desc evaluation(
        {dnnl::prop_kind::forward_inference, data, options.epsilon,
         flags | normalization_flags::use_global_stats},
        attributes, engine);
    const dnnl::batch_normalization_backward::primitive_desc backward(
        {dnnl::prop_kind::backward, data, data, options.epsilon, flags}, attributes, engine, training);

    training_ = Primitive(dnnl::batch_normalization_forward(training),
                          {{DNNL_ARG_SRC, data},
                           {DNNL_ARG_SCALE, channel},
                           {DNNL_ARG_SHIFT, channel},
                           {DNNL_ARG_MEAN, channel},
                           {DNNL_ARG_VARIANCE, channel},
                           {DNNL_ARG_DST, data},
                           {DNNL_ARG_SCRATCHPAD, training.scratchpad_desc()},
                           {DNNL_ARG_WORKSPACE, training.workspace_desc()}});
    evaluation_ = Primitive(dnnl::batch_normalization_forward(evaluation),
                            {{DNNL_ARG_SRC, data},
                             {DNNL_ARG_SCALE, channel},
                             {DNNL_ARG_SHIFT, channel},
                             {DNNL_ARG_MEAN, channel},
                             {DNNL_ARG_VARIANCE, channel},
                             {DNNL_ARG_DST, data},
                             {DNNL_ARG_SCRATCHPAD, evaluation.scratchpad_desc()}});
    backward_ = Primitive(dnnl::batch_normalization_backward(backward),
                          {{DNNL_ARG_SRC, data},
                           {DNNL_ARG_MEAN, channel},
                           {DNNL_ARG_VARIANCE, channel},
                           {DNNL_ARG_DIFF_DST, data},
                           {DNNL_ARG_SCALE, channel},
                           {DNNL_ARG_SHIFT, channel},
                           {DNNL_ARG_DIFF_SRC, data},
                           {DNNL_ARG_DIFF_SCALE, channel},
                           {DNNL_ARG_DIFF_SHIFT, channel},
                           {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()},
                           {DNNL_ARG_WORKSPACE, backward.workspace_desc()}});

    saved_bytes_ = 2 * row_bytes_ + training.workspace_desc().get_size();
    scratch_bytes_ = 2 * row_bytes_ +
                     std::max({training.scratchpad_desc().get_size(), evaluation.scratchpad_desc().get_size(),
                               backward.scratchpad_desc().get_size()});
  }

  float momentum_;
  float unbiased_ = 1;  // unbiased variance over biased
  std::int64_t channels_;
  std::size_t row_bytes_ = 0;  // of one value for each channel
  Primitive training_;
  Primitive evaluation_;
  Primitive backward_;
};

void validate(const BatchNormOptions& o, const Layout& input) {
  const Shape& shape = input.shape();
  if ((shape.rank() != 2 && shape.rank() != 4) || shape.elements() == 0) {
    throw ConfigError(fmt::format(
        "batch norm: the input is {}, expected [N, C] or [N, C, H, W] with no size of 0", to_string(shape)));
  }
  if (!(o.epsilon > 0)) {
    throw ConfigError(fmt::format("batch norm: epsilon is {}, must be above 0 (usual: 1e-5)", o.epsilon));
  }
  if (!(o.momentum >= 0 && o.momentum <= 1)) {
    throw ConfigError(fmt::format(
        "batch norm: momentum is {}, must be from 0 to 1; it is the new batch's share", o.momentum));
  }
  CHECK(input.dtype() == DType::f32, "batch norm of {}", name_of(input.dtype()));
}

}  // namespace

std::unique_ptr<BatchNormKernel> make_cpu_batch_norm(const BatchNormOptions& options, const Layout& input) {
  validate(options, input);
  return plan_with_onednn(fmt::format("batch norm of {}", to_string(input.shape())),
                          [&] { return std::make_unique<CpuBatchNorm>(options, input); });
}

}  // namespace lockstep
