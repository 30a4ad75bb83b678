// SPDX-License-Identifier: Apache-2.0
//
// CpuBackend: the Backend of the CPU. Each function is defined in the file of cpu/ named after it or after
// its header: convolution.cpp, elementwise.cpp, update.cpp.
#pragma once

#include <omp.h>

#include "kernels/backend.h"

namespace lockstep {

class CpuBackend final : public Backend {
 public:
  void set_threads(int threads) override;
  void set_block_threads(int) override {}
  std::string describe() const override;
  std::string identity() const override;
  Peak measure_peak() override;
  double measure_gigaflops(DType, bool) override;
  double measure_gigabytes_per_second() override;
  std::int64_t batch_multiple(DType) override;
  double seconds_without_core(double not_counted) override;

  std::unique_ptr<AffineKernel> convolution(const ConvolutionShape& shape, const Layout& input,
                                            KernelChoices& choices) override;
  std::unique_ptr<AffineKernel> linear(const LinearShape& shape, const Layout& input,
                                       KernelChoices& choices) override;
  std::unique_ptr<BatchNormKernel> batch_norm(const BatchNormOptions& options, const Layout& input) override;
  std::unique_ptr<PoolingKernel> pooling(const PoolingOptions& options, const Layout& input) override;
  std::unique_ptr<ReorderKernel> reorder(const Layout& from, const Layout& to) override;
  std::unique_ptr<ImageInputKernel> image_input(const ImageInput& input) override;
  UpsamplingPlan plan_upsampling(std::int64_t factor, const Layout& input) override;
  ConcatenationPlan plan_concatenation(const Layout& a, const Layout& b) override;
  Layout pixel_rows(const Shape& shape, DType type) override;

  void activation_forward(Stream& stream, const ActivationForward& arguments) override;
  void activation_backward(Stream& stream, const ActivationBackward& arguments) override;
  void add(Stream& stream, const Addition& arguments) override;
  void scale(Stream& stream, const Scaling& arguments) override;
  void cast(Stream& stream, const Cast& arguments) override;
  void all_finite(Stream& stream, const FiniteCheck& arguments) override;
  void largest_magnitude(Stream& stream, const LargestMagnitude& arguments) override;
  void half_scale(Stream& stream, const HalfScale& arguments) override;
  void sum_squares(Stream& stream, const SquareSum& arguments) override;

  void low_rank_rows(Stream& stream, const LowRankRows& arguments) override;
  void low_rank_orthogonalize(Stream& stream, const LowRankOrthogonalize& arguments) override;
  void low_rank_columns(Stream& stream, const LowRankColumns& arguments) override;
  void low_rank_decode(Stream& stream, const LowRankDecode& arguments) override;
  void low_rank_revive(Stream& stream, const LowRankRevive& arguments) override;
  void sparse_clip(Stream& stream, const SparseClip& arguments) override;
  void sparse_threshold(Stream& stream, const SparseThreshold& arguments) override;
  void sparse_select(Stream& stream, const SparseSelection& arguments) override;
  void sparse_sum(Stream& stream, const SparseSum& arguments) override;

  void gather_images(Stream& stream, const ImageGather& arguments) override;
  void color_jitter(Stream& stream, const ColorJitterArguments& arguments) override;
  void softmax_forward(Stream& stream, const SoftmaxForward& arguments) override;
  void softmax_backward(Stream& stream, const SoftmaxBackward& arguments) override;
  void layer_norm_forward(Stream& stream, const LayerNormForward& arguments) override;
  void layer_norm_backward(Stream& stream, const LayerNormBackward& arguments) override;
  void upsample_forward(Stream& stream, const UpsamplingForward& arguments) override;
  void upsample_backward(Stream& stream, const UpsamplingBackward& arguments) override;
  void concatenate(Stream& stream, const Concatenation& arguments) override;
  void separate(Stream& stream, const Separation& arguments) override;
  void dropout(Stream& stream, const DropoutArguments& arguments) override;
  void pixel_targets(Stream& stream, const PixelTargets& arguments) override;
  std::size_t loss_scratch_bytes(std::int64_t) override { return 0; }
  void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) override;
  void output_loss(Stream& stream, const OutputLoss& arguments) override;
  void count_classes(Stream& stream, const ClassCounts& arguments) override;

  void update(Stream& stream, const Update& update, const UpdateRule& rule) override;
  void clip_gradients(Stream& stream, const GradientClip& arguments) override;
  void restore_if_skipped(Stream& stream, const Restore& arguments) override;
  void finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control) override;
  void average_values(Stream& stream, const AverageUpdate& arguments) override;
  void swap_values(Stream& stream, const ValueSwap& arguments) override;

  void encode_blocks(Stream& stream, const BlockEncode& arguments) override;
  void sum_blocks(Stream& stream, const BlockSum& arguments) override;
  void keep_if_finite(Stream& stream, const Keep& arguments) override;

 private:
  // Runs work. On a compute stream: immediately, on the caller's thread and its OpenMP team. On other
  // streams: in stream order, on the worker with Stream::threads() threads. Work may then outlive the call,
  // so it must hold copies of its arguments.
  template <typename Work>
  static void in_order(Stream& stream, Work work) {
    if (stream.use() == StreamUse::compute) return work();
    stream.enqueue([work, threads = stream.threads()] {
      omp_set_num_threads(threads);  // applies to this worker only
      work();
    });
  }
};

}  // namespace lockstep
