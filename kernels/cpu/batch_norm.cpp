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
  const memory::desc desc = to_desc(input);
  const memory::dims dims = desc.dims();
  return dims.size() == 2 ? plain_desc({dims[0], dims[1], 1, 1}, DType::f32) : desc;
}

// saved: mean [C], variance [C], then oneDNN's ReLU mask.
class CpuBatchNorm final : public BatchNormKernel {
 public:
  CpuBatchNorm(const BatchNormOptions& options, const Layout& input) : options_(options) {
    layout_ = input;
    const memory::desc data = image_desc(input);
    channels_ = data.dims()[1];
    samples_ = input.shape().elements() / channels_;
    channel_bytes_ = align_up(static_cast<std::size_t>(channels_) * sizeof(float));
    plan(data);
  }

  void forward_training(Stream&, const void* x, BatchNormParameters parameters, BatchNormStatistics running,
                        void* y, void* saved, void* scratch) override {
    training_.run(
        {x, parameters.scale, parameters.shift, mean(saved), variance(saved), y, pad(scratch), mask(saved)});
    const float keep = 1.0f - options_.momentum;
    const float unbiased =
        samples_ > 1 ? static_cast<float>(samples_) / static_cast<float>(samples_ - 1) : 1.0f;
    for (std::int64_t c = 0; c < channels_; ++c) {
      running.mean[c] = keep * running.mean[c] + options_.momentum * mean(saved)[c];
      running.variance[c] = keep * running.variance[c] + options_.momentum * unbiased * variance(saved)[c];
    }
  }

  void forward_evaluation(Stream&, const void* x, BatchNormParameters parameters, BatchNormStatistics running,
                          void* y, void* scratch) override {
    evaluation_.run({x, parameters.scale, parameters.shift, running.mean, running.variance, y, pad(scratch)});
  }

  void backward(Stream&, const void* x, const void* y_gradient, BatchNormParameters parameters,
                const void* saved, void* x_gradient, float* scale_gradient, float* shift_gradient,
                Write write, void* scratch) override {
    auto* bytes = const_cast<void*>(saved);  // read only, as the primitive's inputs
    const bool adds = write == Write::accumulate;
    float* scale_target = adds ? channel_row(scratch, 0) : scale_gradient;
    float* shift_target = adds ? channel_row(scratch, 1) : shift_gradient;
    backward_.run({x, mean(bytes), variance(bytes), y_gradient, parameters.scale, parameters.shift,
                   x_gradient, scale_target, shift_target, pad(scratch), mask(bytes)});
    if (!adds) return;
    cpu_add(channels_, scale_gradient, scale_target, scale_gradient);
    cpu_add(channels_, shift_gradient, shift_target, shift_gradient);
  }

 private:
  float* channel_row(void* memory, std::size_t row) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory) + row * channel_bytes_);
  }
  float* mean(void* saved) const { return channel_row(saved, 0); }
  float* variance(void* saved) const { return channel_row(saved, 1); }
  void* mask(void* saved) const { return channel_row(saved, 2); }
  void* pad(void* scratch) const { return channel_row(scratch, 2); }  // behind the two rows of accumulation

  void plan(const memory::desc& data) {
    const dnnl::primitive_attr attributes = scratchpad_attributes();
    const dnnl::engine& engine = onednn_engine();
    const auto affine = normalization_flags::use_scale | normalization_flags::use_shift;
    const auto flags = options_.relu ? affine | normalization_flags::fuse_norm_relu : affine;
    const memory::desc row({channels_}, memory::data_type::f32, memory::format_tag::x);

    const dnnl::batch_normalization_forward::primitive_desc training(
        {dnnl::prop_kind::forward_training, data, options_.epsilon, flags}, attributes, engine);
    training_ = Primitive(dnnl::batch_normalization_forward(training),
                          {{DNNL_ARG_SRC, data},
                           {DNNL_ARG_SCALE, row},
                           {DNNL_ARG_SHIFT, row},
                           {DNNL_ARG_MEAN, row},
                           {DNNL_ARG_VARIANCE, row},
                           {DNNL_ARG_DST, data},
                           {DNNL_ARG_SCRATCHPAD, training.scratchpad_desc()},
                           {DNNL_ARG_WORKSPACE, training.workspace_desc()}});

    const dnnl::batch_normalization_forward::primitive_desc evaluation(
        {dnnl::prop_kind::forward_inference, data, options_.epsilon,
         flags | normalization_flags::use_global_stats},
        attributes, engine);
    evaluation_ = Primitive(dnnl::batch_normalization_forward(evaluation),
                            {{DNNL_ARG_SRC, data},
                             {DNNL_ARG_SCALE, row},
                             {DNNL_ARG_SHIFT, row},
                             {DNNL_ARG_MEAN, row},
                             {DNNL_ARG_VARIANCE, row},
                             {DNNL_ARG_DST, data},
                             {DNNL_ARG_SCRATCHPAD, evaluation.scratchpad_desc()}});

    const dnnl::batch_normalization_backward::primitive_desc backward(
        {dnnl::prop_kind::backward, data, data, options_.epsilon, flags}, attributes, engine, training);
    backward_ = Primitive(dnnl::batch_normalization_backward(backward),
                          {{DNNL_ARG_SRC, data},
                           {DNNL_ARG_MEAN, row},
                           {DNNL_ARG_VARIANCE, row},
                           {DNNL_ARG_DIFF_DST, data},
                           {DNNL_ARG_SCALE, row},
                           {DNNL_ARG_SHIFT, row},
                           {DNNL_ARG_DIFF_SRC, data},
                           {DNNL_ARG_DIFF_SCALE, row},
                           {DNNL_ARG_DIFF_SHIFT, row},
                           {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()},
                           {DNNL_ARG_WORKSPACE, backward.workspace_desc()}});

    saved_bytes_ = 2 * channel_bytes_ + training.workspace_desc().get_size();
    scratch_bytes_ = 2 * channel_bytes_ +
                     std::max({training.scratchpad_desc().get_size(), evaluation.scratchpad_desc().get_size(),
                               backward.scratchpad_desc().get_size()});
  }

  BatchNormOptions options_;
  std::int64_t channels_ = 0;
  std::int64_t samples_ = 0;  // per channel
  std::size_t channel_bytes_ = 0;
  Primitive training_;
  Primitive evaluation_;
  Primitive backward_;
};

}  // namespace

std::unique_ptr<BatchNormKernel> make_cpu_batch_norm(const BatchNormOptions& options, const Layout& input) {
  const int rank = input.shape().rank();
  if (rank != 2 && rank != 4) {
    throw ConfigError(fmt::format("batch norm: the input is {}, expected [N, C] or [N, C, H, W]",
                                  to_string(input.shape())));
  }
  return plan_with_onednn(fmt::format("batch norm of {}", to_string(input.shape())),
                          [&] { return std::make_unique<CpuBatchNorm>(options, input); });
}

}  // namespace lockstep
