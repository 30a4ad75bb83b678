// SPDX-License-Identifier: Apache-2.0
//
// Backend: everything a device can compute. The only place where the kernels of a device are chosen: plan
// with backend_for(device), then call what it returned. Planning may be slow and allocate; calls are neither.
//
// Calls are ordered on the given stream. On the CPU those of a compute stream run inline, and must be called
// from one thread per process (they share one OpenMP team). The functions over flat memory, elementwise, of
// optimizers and of codecs, may be given any other stream, too: its worker then runs them in their order,
// with Stream::threads() threads of its own, while the compute stream goes on. Planned kernels, dropout and
// the loss with its counts are for compute streams alone.
#pragma once

#include <memory>
#include <span>

#include "core/layout.h"
#include "core/stream.h"
#include "kernels/activation.h"
#include "kernels/affine.h"
#include "kernels/batch_norm.h"
#include "kernels/class_counts.h"
#include "kernels/codec.h"
#include "kernels/color_jitter.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/image_gather.h"
#include "kernels/image_input.h"
#include "kernels/kernel_choices.h"
#include "kernels/loss.h"
#include "kernels/low_rank.h"
#include "kernels/pooling.h"
#include "kernels/sparse.h"
#include "kernels/update.h"

namespace lockstep {

// Copies a tensor from one layout to another of the same shape and type.
class ReorderKernel {
 public:
  virtual ~ReorderKernel() = default;
  virtual void run(Stream& stream, const void* from, void* to) = 0;
};

// What the device can do at best, measured: the ceilings a kernel's time is held against.
struct Peak {
  double gigaflops = 0;             // fp32 multiply-adds in registers, 10^9 operations per second
  double tf32_gigaflops = 0;        // products of matrices rounded to TF32; 0: not measured (CPU)
  double half_gigaflops = 0;        // products of fp16 matrices, summed in fp32; 0: not measured (CPU)
  double gigabytes_per_second = 0;  // a large copy, bytes read and written
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Threads the calling thread's kernels use; CPU only.
  virtual void set_threads(int threads) = 0;
  // Threads of a block in kernels that leave their number open; GPU only. For measurements: results do not
  // depend on it. Throws ConfigError for what is no multiple of a warp or too many.
  virtual void set_block_threads(int threads) = 0;
  // One line for the log: library and version, instruction set.
  virtual std::string describe() const = 0;
  // What the time of a kernel depends on besides its shape: library, version, processor, threads in use.
  virtual std::string identity() const = 0;
  // Of the threads in use. Takes about a second.
  virtual Peak measure_peak() = 0;
  // That one of its figures by which products in this type are bounded, in a GPU's TF32 if `tf32`: takes some
  // milliseconds, and on a GPU 200 MB of its memory while it does.
  virtual double measure_gigaflops(DType type, bool tf32) = 0;
  // That of its memory, likewise: with a copy of 64 MiB, past all but the largest caches.
  virtual double measure_gigabytes_per_second() = 0;
  // A batch of a multiple of so many samples leaves none of the kernels' lanes without work: on a CPU the
  // threads in use, of which each takes whole samples; on a GPU the elements of this type that tensor cores
  // load at once (16 bytes: NVIDIA's guide to fully-connected layers, "Quick Start Checklist").
  virtual std::int64_t batch_multiple(DType type) = 0;
  // How long the threads in use were ready to run and had no core so far, their mean; 0 on a GPU. The calling
  // thread is one of them, of which so many seconds are not counted.
  virtual double seconds_without_core(double not_counted) = 0;

  // All throw ConfigError for shapes that make no sense, naming the number. input.shape() must be the
  // shape's; its type is that of every activation, activation's gradient, weight and weight's gradient of the
  // kernel.
  virtual std::unique_ptr<AffineKernel> convolution(const ConvolutionShape& shape, const Layout& input,
                                                    KernelChoices& choices) = 0;
  virtual std::unique_ptr<AffineKernel> linear(const LinearShape& shape, const Layout& input,
                                               KernelChoices& choices) = 0;
  virtual std::unique_ptr<BatchNormKernel> batch_norm(const BatchNormOptions& options,
                                                      const Layout& input) = 0;
  virtual std::unique_ptr<PoolingKernel> pooling(const PoolingOptions& options, const Layout& input) = 0;
  virtual std::unique_ptr<ReorderKernel> reorder(const Layout& from, const Layout& to) = 0;
  virtual std::unique_ptr<ImageInputKernel> image_input(const ImageInput& input) = 0;

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

  // See kernels/low_rank.h; on any stream, as elementwise functions.
  virtual void low_rank_rows(Stream& stream, const LowRankRows& arguments) = 0;
  virtual void low_rank_orthogonalize(Stream& stream, const LowRankOrthogonalize& arguments) = 0;
  virtual void low_rank_columns(Stream& stream, const LowRankColumns& arguments) = 0;
  virtual void low_rank_decode(Stream& stream, const LowRankDecode& arguments) = 0;
  virtual void low_rank_revive(Stream& stream, const LowRankRevive& arguments) = 0;
  // See kernels/sparse.h; likewise.
  virtual void sparse_clip(Stream& stream, const SparseClip& arguments) = 0;
  virtual void sparse_threshold(Stream& stream, const SparseThreshold& arguments) = 0;
  virtual void sparse_select(Stream& stream, const SparseSelection& arguments) = 0;
  virtual void sparse_sum(Stream& stream, const SparseSum& arguments) = 0;

  // On any stream.
  virtual void gather_images(Stream& stream, const ImageGather& arguments) = 0;
  virtual void color_jitter(Stream& stream, const ColorJitterArguments& arguments) = 0;
  virtual void dropout(Stream& stream, const DropoutArguments& arguments) = 0;
  virtual std::size_t loss_scratch_bytes(std::int64_t batch) = 0;
  virtual void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) = 0;
  virtual void count_classes(Stream& stream, const ClassCounts& arguments) = 0;

  // Before the updates of a step: how much of its gradients they take.
  virtual void clip_gradients(Stream& stream, const GradientClip& arguments) = 0;
  // One optimizer step of everything in the table.
  virtual void update(Stream& stream, const Update& update, const UpdateRule& rule) = 0;
  virtual void restore_if_skipped(Stream& stream, const Restore& arguments) = 0;
  // After the updates of a step: counts it, or where it was skipped does not, and moves the loss scale.
  virtual void finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control) = 0;
  // Behind that, and between steps.
  virtual void average_values(Stream& stream, const AverageUpdate& arguments) = 0;
  virtual void swap_values(Stream& stream, const ValueSwap& arguments) = 0;

  // See kernels/codec.h.
  virtual void encode_blocks(Stream& stream, const BlockEncode& arguments) = 0;
  virtual void sum_blocks(Stream& stream, const BlockSum& arguments) = 0;
  virtual void keep_if_finite(Stream& stream, const Keep& arguments) = 0;
};

// The device's backend; lives as long as the process. Throws ConfigError when it was not built.
Backend& backend_for(Device device);
// Whether this build has kernels for the device.
bool has_backend(DeviceKind kind);

}  // namespace lockstep
