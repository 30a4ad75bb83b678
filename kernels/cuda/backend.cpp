// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend: planned kernels and operations of one GPU.
#include <map>
#include <memory>
#include <mutex>

#include <cuda_runtime_api.h>

#include "core/cuda/check.h"
#include "core/error.h"
#include "kernels/backend_factories.h"
#include "kernels/cuda/class_counts.h"
#include "kernels/cuda/codec.h"
#include "kernels/cuda/color_jitter.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/image_gather.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layer_norm.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/segmentation.h"
#include "kernels/cuda/softmax.h"
#include "kernels/cuda/sparse.h"
#include "kernels/cuda/update.h"
#include "kernels/library_versions.h"

namespace lockstep {
namespace {

std::string driver_text() {
  int driver = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  return fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
}

cudaDeviceProp properties_of(Device device) {
  cudaDeviceProp properties = {};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
  return properties;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(Device device) : libraries_(device), properties_(properties_of(device)) {}

  void set_threads(int) override {}
  void set_block_threads(int threads) override { lockstep::set_block_threads(threads); }
  std::string describe() const override {
    return fmt::format("{} on {}", cuda_library_versions(), properties_.name);
  }
  std::string identity() const override {
    return fmt::format("{}, compute capability {}.{}, driver for CUDA {}", describe(), properties_.major,
                       properties_.minor, driver_text());
  }
  Peak measure_peak() override { return measure_cuda_peak(libraries_); }
  double measure_gigaflops(DType type, bool tf32) override {
    return measure_cuda_gigaflops(libraries_, type, tf32);
  }
  double measure_gigabytes_per_second() override { return measure_cuda_gigabytes_per_second(libraries_); }
  std::int64_t batch_multiple(DType type) override { return 16 / static_cast<std::int64_t>(size_of(type)); }
  double seconds_without_core(double) override { return 0; }

  std::unique_ptr<AffineKernel> convolution(const ConvolutionShape& shape, const Layout& input,
                                            KernelChoices& choices) override {
    return make_cuda_convolution(libraries_, shape, input, choices);
  }
  std::unique_ptr<AffineKernel> linear(const LinearShape& shape, const Layout& input,
                                       KernelChoices& choices) override {
    return make_cuda_linear(libraries_, shape, input, choices);
  }
  std::unique_ptr<BatchNormKernel> batch_norm(const BatchNormOptions& options, const Layout& input) override {
    return make_cuda_batch_norm(options, input);
  }
  std::unique_ptr<PoolingKernel> pooling(const PoolingOptions& options, const Layout& input) override {
    return make_cuda_pooling(options, input);
  }
  std::unique_ptr<ReorderKernel> reorder(const Layout& from, const Layout& to) override {
    return make_cuda_reorder(from, to);
  }
  std::unique_ptr<ImageInputKernel> image_input(const ImageInput& input) override {
    return make_cuda_image_input(input);
  }

  UpsamplingPlan plan_upsampling(std::int64_t factor, const Layout& input) override {
    return plan_cuda_upsampling(factor, input);
  }
  ConcatenationPlan plan_concatenation(const Layout& a, const Layout& b) override {
    return plan_cuda_concatenation(a, b);
  }
  Layout pixel_rows(const Shape& shape, DType type) override { return cuda_pixel_rows(shape, type); }

  void activation_forward(Stream& stream, const ActivationForward& arguments) override {
    cuda_activation_forward(stream, arguments);
  }
  void activation_backward(Stream& stream, const ActivationBackward& arguments) override {
    cuda_activation_backward(stream, arguments);
  }
  void add(Stream& stream, const Addition& arguments) override { cuda_add(stream, arguments); }
  void scale(Stream& stream, const Scaling& arguments) override { cuda_scale(stream, arguments); }
  void cast(Stream& stream, const Cast& arguments) override { cuda_cast(stream, arguments); }
  void sum_squares(Stream& stream, const SquareSum& arguments) override {
    cuda_sum_squares(stream, arguments);
  }
  void all_finite(Stream& stream, const FiniteCheck& arguments) override {
    cuda_all_finite(stream, arguments);
  }
  void largest_magnitude(Stream& stream, const LargestMagnitude& arguments) override {
    cuda_largest_magnitude(stream, arguments);
  }
  void half_scale(Stream& stream, const HalfScale& arguments) override { cuda_half_scale(stream, arguments); }

  void low_rank_rows(Stream& stream, const LowRankRows& arguments) override {
    cuda_low_rank_rows(stream, arguments);
  }
  void low_rank_orthogonalize(Stream& stream, const LowRankOrthogonalize& arguments) override {
    cuda_low_rank_orthogonalize(stream, arguments);
  }
  void low_rank_columns(Stream& stream, const LowRankColumns& arguments) override {
    cuda_low_rank_columns(stream, arguments);
  }
  void low_rank_decode(Stream& stream, const LowRankDecode& arguments) override {
    cuda_low_rank_decode(stream, arguments);
  }
  void low_rank_revive(Stream& stream, const LowRankRevive& arguments) override {
    cuda_low_rank_revive(stream, arguments);
  }
  void sparse_clip(Stream& stream, const SparseClip& arguments) override {
    cuda_sparse_clip(stream, arguments);
  }
  void sparse_threshold(Stream& stream, const SparseThreshold& arguments) override {
    cuda_sparse_threshold(stream, arguments);
  }
  void sparse_select(Stream& stream, const SparseSelection& arguments) override {
    cuda_sparse_select(stream, arguments);
  }
  void sparse_sum(Stream& stream, const SparseSum& arguments) override { cuda_sparse_sum(stream, arguments); }

  void gather_images(Stream& stream, const ImageGather& arguments) override {
    cuda_gather_images(stream, arguments);
  }
  void color_jitter(Stream& stream, const ColorJitterArguments& arguments) override {
    cuda_color_jitter(stream, arguments);
  }
  void softmax_forward(Stream& stream, const SoftmaxForward& arguments) override {
    cuda_softmax_forward(stream, arguments);
  }
  void softmax_backward(Stream& stream, const SoftmaxBackward& arguments) override {
    cuda_softmax_backward(stream, arguments);
  }
  void layer_norm_forward(Stream& stream, const LayerNormForward& arguments) override {
    cuda_layer_norm_forward(stream, arguments);
  }
  void layer_norm_backward(Stream& stream, const LayerNormBackward& arguments) override {
    cuda_layer_norm_backward(stream, arguments);
  }
  void upsample_forward(Stream& stream, const UpsamplingForward& arguments) override {
    cuda_upsample_forward(stream, arguments);
  }
  void upsample_backward(Stream& stream, const UpsamplingBackward& arguments) override {
    cuda_upsample_backward(stream, arguments);
  }
  void concatenate(Stream& stream, const Concatenation& arguments) override {
    cuda_concatenate(stream, arguments);
  }
  void separate(Stream& stream, const Separation& arguments) override { cuda_separate(stream, arguments); }
  void dropout(Stream& stream, const DropoutArguments& arguments) override {
    cuda_dropout(stream, arguments);
  }
  void pixel_targets(Stream& stream, const PixelTargets& arguments) override {
    cuda_pixel_targets(stream, arguments);
  }
  std::size_t loss_scratch_bytes(std::int64_t batch) override { return cuda_loss_scratch_bytes(batch); }
  void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) override {
    cuda_softmax_cross_entropy(stream, arguments);
  }
  void output_loss(Stream& stream, const OutputLoss& arguments) override {
    cuda_output_loss(stream, arguments);
  }
  void count_classes(Stream& stream, const ClassCounts& arguments) override {
    cuda_count_classes(stream, arguments);
  }

  void clip_gradients(Stream& stream, const GradientClip& arguments) override {
    cuda_clip_gradients(stream, arguments);
  }
  void update(Stream& stream, const Update& update, const UpdateRule& rule) override {
    cuda_update(stream, update, rule);
  }
  void restore_if_skipped(Stream& stream, const Restore& arguments) override {
    cuda_restore_if_skipped(stream, arguments);
  }
  void finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control) override {
    cuda_finish_step(stream, rule, control);
  }
  void average_values(Stream& stream, const AverageUpdate& arguments) override {
    cuda_average_values(stream, arguments);
  }
  void swap_values(Stream& stream, const ValueSwap& arguments) override {
    cuda_swap_values(stream, arguments);
  }

  void encode_blocks(Stream& stream, const BlockEncode& arguments) override {
    cuda_encode_blocks(stream, arguments);
  }
  void sum_blocks(Stream& stream, const BlockSum& arguments) override { cuda_sum_blocks(stream, arguments); }
  void keep_if_finite(Stream& stream, const Keep& arguments) override {
    cuda_keep_if_finite(stream, arguments);
  }

 private:
  CudaLibraries libraries_;
  cudaDeviceProp properties_;
};

}  // namespace

Backend& detail::cuda_backend(Device device) {
  require_cuda_device(device);
  // Never destroyed: the driver may shut down before the process destroys its static variables.
  static auto& mutex = *new std::mutex;
  static auto& backends = *new std::map<int, std::unique_ptr<CudaBackend>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CudaBackend>& backend = backends[device.index];
  if (!backend) backend = std::make_unique<CudaBackend>(device);
  return *backend;
}

bool detail::has_cuda_backend() { return true; }

}  // namespace lockstep
