// SPDX-License-Identifier: Apache-2.0
//
// Backend: all computations of a device, and the only place where its kernels are chosen: plan with
// backend_for(device), then call what it returned. Planning may be slow and allocate; calls do not allocate.
//
// Calls run in order on the given stream. On the CPU, calls on a compute stream run inline and must come from
// one thread per process, because they share one OpenMP team. Functions over flat memory (elementwise,
// optimizers, codecs) accept any stream: a worker stream runs them in order on Stream::threads() threads,
// which are separate from the compute stream's and run concurrently with it. Planned kernels and all other
// functions require a compute stream, unless a comment below says "on any stream".
#pragma once

#include <memory>

#include "core/stream.h"
#include "core/tensor/layout.h"
#include "kernels/activation.h"
#include "kernels/affine.h"
#include "kernels/batch_norm.h"
#include "kernels/class_counts.h"
#include "kernels/codec.h"
#include "kernels/color_jitter.h"
#include "kernels/concatenation.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/image_gather.h"
#include "kernels/image_input.h"
#include "kernels/kernel_choices.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include "kernels/low_rank.h"
#include "kernels/pixel_targets.h"
#include "kernels/pooling.h"
#include "kernels/softmax.h"
#include "kernels/sparse.h"
#include "kernels/update.h"
#include "kernels/upsampling.h"

namespace lockstep {

// Copies a tensor from one layout to another of the same shape and type.
class ReorderKernel {
 public:
  virtual ~ReorderKernel() = default;
  virtual void run(Stream& stream, const void* from, void* to) = 0;
};

// The device's measured peak rates, which kernels are compared with.
struct Peak {
  double gigaflops = 0;             // fp32 multiply-adds in registers, 10^9 operations per second
  double tf32_gigaflops = 0;        // products of matrices rounded to TF32; 0: not measured (CPU)
  double half_gigaflops = 0;        // products of half matrices, summed in fp32; 0: as fp32 (CPU)
  double bf16_gigaflops = 0;        // products of bf16 matrices; 0: as half_gigaflops (GPU)
  double gigabytes_per_second = 0;  // a large copy, bytes read and written
};

class Backend {
 public:
  virtual ~Backend() = default;

  // CPU only: the number of threads for the calling thread's kernels and its compute streams' copies.
  virtual void set_threads(int threads) = 0;
  // GPU only, for measurements: threads per block in kernels that leave the number open. Results do not
  // depend on it. Throws ConfigError if it is not a multiple of a warp or is too large.
  virtual void set_block_threads(int threads) = 0;
  // One line for the log: library and version, instruction set.
  virtual std::string describe() const = 0;
  // All that a kernel's time depends on besides its shape: library, version, processor, threads in use.
  virtual std::string identity() const = 0;
  // Measures the peak rates with the threads in use. Takes about a second and, on a GPU, 1.1 GB of its memory
  // meanwhile.
  virtual Peak measure_peak() = 0;
  // Measures the rate that bounds products of this type (with `tf32`, a GPU's TF32 rate). Takes some
  // milliseconds and, on a GPU, 200 MB of its memory meanwhile.
  virtual double measure_gigaflops(DType type, bool tf32) = 0;
  // Measures the memory bandwidth with a copy of 64 MiB, larger than all but the largest caches.
  virtual double measure_gigabytes_per_second() = 0;
  // A batch size that is a multiple of this keeps all lanes of the kernels busy. On a CPU: the threads in
  // use, each of which takes whole samples. On a GPU: the elements of this type that tensor cores load at
  // once (16 bytes: NVIDIA's guide to fully-connected layers, "Quick Start Checklist").
  virtual std::int64_t batch_multiple(DType type) = 0;
  // Mean seconds so far that the threads in use were ready to run but had no core; 0 on a GPU. not_counted:
  // seconds of the calling thread, which is one of them, to subtract from the sum.
  virtual double seconds_without_core(double not_counted) = 0;

  // All throw ConfigError for invalid shapes; the message names the number. input.shape() must match the
  // given shape; its type is the type of all activations, weights and their gradients of the kernel.
  virtual std::unique_ptr<AffineKernel> convolution(const ConvolutionShape& shape, const Layout& input,
                                                    KernelChoices& choices) = 0;
  virtual std::unique_ptr<AffineKernel> linear(const LinearShape& shape, const Layout& input,
                                               KernelChoices& choices) = 0;
  virtual std::unique_ptr<BatchNormKernel> batch_norm(const BatchNormOptions& options,
                                                      const Layout& input) = 0;
  virtual std::unique_ptr<PoolingKernel> pooling(const PoolingOptions& options, const Layout& input) = 0;
  virtual std::unique_ptr<ReorderKernel> reorder(const Layout& from, const Layout& to) = 0;
  virtual std::unique_ptr<ImageInputKernel> image_input(const ImageInput& input) = 0;
  // Layouts and sizes for upsample_forward() and concatenate(); other layouts are reordered to these.
  virtual UpsamplingPlan plan_upsampling(std::int64_t factor, const Layout& input) = 0;
  virtual ConcatenationPlan plan_concatenation(const Layout& a, const Layout& b) = 0;
  // The dense layout [N, H, W, C] of a tensor [N, C, H, W].
  virtual Layout pixel_rows(const Shape& shape, DType type) = 0;

  // See kernels/elementwise.h.
  virtual void activation_forward(Stream& stream, const ActivationForward& arguments) = 0;
  virtual void activation_backward(Stream& stream, const ActivationBackward& arguments) = 0;
  virtual void add(Stream& stream, const Addition& arguments) = 0;
  virtual void scale(Stream& stream, const Scaling& arguments) = 0;
  virtual void cast(Stream& stream, const Cast& arguments) = 0;
  virtual void all_finite(Stream& stream, const FiniteCheck& arguments) = 0;
  virtual void largest_magnitude(Stream& stream, const LargestMagnitude& arguments) = 0;
  virtual void half_scale(Stream& stream, const HalfScale& arguments) = 0;
  virtual void sum_squares(Stream& stream, const SquareSum& arguments) = 0;

  // See kernels/low_rank.h; on any stream, like elementwise functions.
  virtual void low_rank_rows(Stream& stream, const LowRankRows& arguments) = 0;
  virtual void low_rank_orthogonalize(Stream& stream, const LowRankOrthogonalize& arguments) = 0;
  virtual void low_rank_columns(Stream& stream, const LowRankColumns& arguments) = 0;
  virtual void low_rank_decode(Stream& stream, const LowRankDecode& arguments) = 0;
  virtual void low_rank_revive(Stream& stream, const LowRankRevive& arguments) = 0;
  // See kernels/sparse.h; on any stream.
  virtual void sparse_clip(Stream& stream, const SparseClip& arguments) = 0;
  virtual void sparse_threshold(Stream& stream, const SparseThreshold& arguments) = 0;
  virtual void sparse_select(Stream& stream, const SparseSelection& arguments) = 0;
  virtual void sparse_sum(Stream& stream, const SparseSum& arguments) = 0;

  // On any stream.
  virtual void gather_images(Stream& stream, const ImageGather& arguments) = 0;
  virtual void color_jitter(Stream& stream, const ColorJitterArguments& arguments) = 0;
  // See kernels/softmax.h.
  virtual void softmax_forward(Stream& stream, const SoftmaxForward& arguments) = 0;
  virtual void softmax_backward(Stream& stream, const SoftmaxBackward& arguments) = 0;
  // See kernels/layer_norm.h.
  virtual void layer_norm_forward(Stream& stream, const LayerNormForward& arguments) = 0;
  virtual void layer_norm_backward(Stream& stream, const LayerNormBackward& arguments) = 0;
  // See kernels/upsampling.h and kernels/concatenation.h.
  virtual void upsample_forward(Stream& stream, const UpsamplingForward& arguments) = 0;
  virtual void upsample_backward(Stream& stream, const UpsamplingBackward& arguments) = 0;
  virtual void concatenate(Stream& stream, const Concatenation& arguments) = 0;
  virtual void separate(Stream& stream, const Separation& arguments) = 0;
  virtual void dropout(Stream& stream, const DropoutArguments& arguments) = 0;
  virtual void pixel_targets(Stream& stream, const PixelTargets& arguments) = 0;
  virtual std::size_t loss_scratch_bytes(std::int64_t batch) = 0;
  virtual void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) = 0;
  virtual void output_loss(Stream& stream, const OutputLoss& arguments) = 0;
  virtual void count_classes(Stream& stream, const ClassCounts& arguments) = 0;

  // Call before the updates of a step: sets the factor that clips its gradients.
  virtual void clip_gradients(Stream& stream, const GradientClip& arguments) = 0;
  // Performs one optimizer step on all elements of the table.
  virtual void update(Stream& stream, const Update& update, const UpdateRule& rule) = 0;
  virtual void restore_if_skipped(Stream& stream, const Restore& arguments) = 0;
  // Call after the updates of a step: counts the step unless it was skipped, and adjusts the loss scale.
  virtual void finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control) = 0;
  // Call after finish_step(), or between steps.
  virtual void average_values(Stream& stream, const AverageUpdate& arguments) = 0;
  virtual void swap_values(Stream& stream, const ValueSwap& arguments) = 0;

  // See kernels/codec.h.
  virtual void encode_blocks(Stream& stream, const BlockEncode& arguments) = 0;
  virtual void sum_blocks(Stream& stream, const BlockSum& arguments) = 0;
  virtual void keep_if_finite(Stream& stream, const Keep& arguments) = 0;
};

// The device's backend; lives as long as the process. Throws ConfigError if it was not built.
Backend& backend_for(Device device);
// True if this build has kernels for the device.
bool has_backend(DeviceKind kind);

}  // namespace lockstep
