// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kernels.h"

#include "core/tensor/buffer.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/image_input.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/pooling.h"
#include "kernels/cuda/staging.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

Layout unpadded_channels_last(const Layout& input) {
  const Shape& shape = input.shape();
  return channels_last_layout(shape, input.dtype(),
                              {.outer = shape[0],
                               .channels = shape[1],
                               .pixels = shape.rank() == 4 ? shape[2] * shape[3] : 1,
                               .physical_channels = shape[1]});
}

// If tensors are staged, three of them follow the kernel's own scratch memory. Forward: x, residual, y.
// Backward: x, y's gradient, x's gradient; the residual's gradient (without a residual, x's) takes the place
// of y's.
class CudaBatchNormKernel final : public BatchNormKernel {
 public:
  CudaBatchNormKernel(const BatchNormOptions& options, const Layout& input)
      : tensor_(input, unpadded_channels_last(input)) {
    layout_ = input;
    const std::int64_t channels = input.shape()[1];
    norm_ = {.type = input.dtype(),
             .rows = input.shape().elements() / channels,
             .channels = channels,
             .options = options};
    saved_bytes_ = norm_.saved_bytes();
    stage_bytes_ = align_up(tensor_.bytes());
    own_bytes_ = align_up(norm_.scratch_bytes());
    scratch_bytes_ = own_bytes_ + 3 * stage_bytes_;
  }

  void forward_training(Stream& stream, const BatchNormForward& f) override {
    forward(stream, f, cuda_batch_norm_forward_training);
  }
  void forward_evaluation(Stream& stream, const BatchNormForward& f) override {
    forward(stream, f, cuda_batch_norm_forward_evaluation);
  }

  void backward(Stream& stream, const BatchNormBackward& b) override {
    BatchNormBackward staged = b;
    staged.x = tensor_.bring(stream, b.x, stage(b.scratch, 0));
    staged.y_gradient = tensor_.bring(stream, b.y_gradient, stage(b.scratch, 1));
    const bool residual = norm_.options.residual;
    staged.x_gradient = tensor_.target(b.x_gradient, stage(b.scratch, residual ? 2 : 1));
    if (residual) staged.residual_gradient = tensor_.target(b.residual_gradient, stage(b.scratch, 1));
    cuda_batch_norm_backward(stream, norm_, staged);
    tensor_.deliver(stream, staged.x_gradient, b.x_gradient);
    if (residual) tensor_.deliver(stream, staged.residual_gradient, b.residual_gradient);
  }

 private:
  template <typename Function>
  void forward(Stream& stream, const BatchNormForward& f, Function function) {
    BatchNormForward staged = f;
    staged.x = tensor_.bring(stream, f.x, stage(f.scratch, 0));
    if (norm_.options.residual) staged.residual = tensor_.bring(stream, f.residual, stage(f.scratch, 1));
    staged.y = tensor_.target(f.y, stage(f.scratch, 2));
    function(stream, norm_, staged);
    tensor_.deliver(stream, staged.y, f.y);
  }
  void* stage(void* scratch, std::size_t index) const {
    return static_cast<std::byte*>(scratch) + own_bytes_ + index * stage_bytes_;
  }

  LayoutStaging tensor_;
  CudaBatchNorm norm_;
  std::size_t own_bytes_ = 0;
  std::size_t stage_bytes_ = 0;
};

// Padded channels are pooled like the others: zeros stay zeros.
class CudaPoolingKernel final : public PoolingKernel {
 public:
  CudaPoolingKernel(const PoolingOptions& options, const Layout& input) {
    const std::optional<ChannelsLast> given = channels_last(input);
    image_ = LayoutStaging(input, given ? input : unpadded_channels_last(input));
    const Shape& in = input.shape();
    const Shape out{in[0], in[1], options.out_size(in[2]), options.out_size(in[3])};
    const std::int64_t physical = given ? given->physical_channels : in[1];
    pooling_ = CudaPooling::from(options, input.dtype(), {in[0], physical, in[2], in[3]});
    input_ = input;
    output_ = channels_last_layout(
        out, input.dtype(),
        {.outer = out[0], .channels = out[1], .pixels = out[2] * out[3], .physical_channels = physical});
    saved_bytes_ = pooling_.saved_bytes();
    scratch_bytes_ = image_.bytes();
  }

  void forward(Stream& stream, const void* input, void* output, void* saved, void* scratch) override {
    cuda_pooling_forward(stream, pooling_, image_.bring(stream, input, scratch), output,
                         saved_bytes_ == 0 ? nullptr : saved);
  }
  void backward(Stream& stream, const void* output_gradient, const void* saved, void* input_gradient,
                void* scratch) override {
    void* target = image_.target(input_gradient, scratch);
    cuda_pooling_backward(stream, pooling_,
                          {.y_gradient = output_gradient, .saved = saved, .x_gradient = target});
    image_.deliver(stream, target, input_gradient);
  }

 private:
  LayoutStaging image_;
  CudaPooling pooling_;
};

class CudaReorderKernel final : public ReorderKernel {
 public:
  CudaReorderKernel(const Layout& from, const Layout& to)
      : reorder_(CudaReorder::between(from, to)), copied_bytes_(from == to ? from.bytes() : 0) {}

  void run(Stream& stream, const void* from, void* to) override {
    if (copied_bytes_ > 0) return stream.copy(to, from, copied_bytes_);
    cuda_reorder(stream, reorder_, from, to);
  }

 private:
  CudaReorder reorder_;
  std::size_t copied_bytes_;
};

class CudaImageInputKernel final : public ImageInputKernel {
 public:
  explicit CudaImageInputKernel(const ImageInput& input) : images_(CudaImageInput::from(input)) {
    output_ = channels_last_layout({input.batch, input.channels, input.height, input.width}, input.type,
                                   {.outer = input.batch,
                                    .channels = input.channels,
                                    .pixels = input.height * input.width,
                                    .physical_channels = padded_channels(input.channels, input.type)});
  }

  void run(Stream& stream, const void* images, void* output, const SampleId* samples,
           const MixedSamples& mixed) override {
    cuda_image_input(stream, images_, images, output, samples, mixed);
  }

 private:
  CudaImageInput images_;
};

}  // namespace

std::unique_ptr<BatchNormKernel> make_cuda_batch_norm(const BatchNormOptions& options, const Layout& input) {
  check_batch_norm(options, input);
  return std::make_unique<CudaBatchNormKernel>(options, input);
}

std::unique_ptr<PoolingKernel> make_cuda_pooling(const PoolingOptions& options, const Layout& input) {
  check_pooling(options, input);
  return std::make_unique<CudaPoolingKernel>(options, input);
}

std::unique_ptr<ReorderKernel> make_cuda_reorder(const Layout& from, const Layout& to) {
  return std::make_unique<CudaReorderKernel>(from, to);
}

std::unique_ptr<ImageInputKernel> make_cuda_image_input(const ImageInput& input) {
  return std::make_unique<CudaImageInputKernel>(input);
}

UpsamplingPlan plan_cuda_upsampling(std::int64_t factor, const Layout& input) {
  const Shape& in = input.shape();
  const Layout small = channels_last(input) ? input : unpadded_channels_last(input);
  const std::int64_t physical = channels_last(small)->physical_channels;
  return {.input = small,
          .output = channels_last_layout({in[0], in[1], in[2] * factor, in[3] * factor}, input.dtype(),
                                         {.outer = in[0],
                                          .channels = in[1],
                                          .pixels = in[2] * in[3] * factor * factor,
                                          .physical_channels = physical}),
          .shape = {.outer = in[0],
                    .height = in[2],
                    .width = in[3],
                    .inner = physical,
                    .factor = factor,
                    .type = input.dtype()}};
}

ConcatenationPlan plan_cuda_concatenation(const Layout& a, const Layout& b) {
  const Shape &in_a = a.shape(), &in_b = b.shape();
  return {.a = unpadded_channels_last(a),
          .b = unpadded_channels_last(b),
          .output = cuda_pixel_rows({in_a[0], in_a[1] + in_b[1], in_a[2], in_a[3]}, a.dtype()),
          .shape = {.rows = in_a[0] * in_a[2] * in_a[3],
                    .a_elements = in_a[1],
                    .b_elements = in_b[1],
                    .type = a.dtype()}};
}

Layout cuda_pixel_rows(const Shape& shape, DType type) { return unpadded_channels_last(Layout(shape, type)); }

}  // namespace lockstep
