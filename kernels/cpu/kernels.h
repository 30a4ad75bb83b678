// SPDX-License-Identifier: Apache-2.0
//
// What the files of cpu/ offer to the CPU backend: makers of planned kernels, and the elementwise functions,
// which mean what Backend says. Everything runs inline on the calling thread's OpenMP team.
#pragma once

#include <cstdint>
#include <memory>

#include "core/layout.h"
#include "kernels/affine.h"
#include "kernels/backend.h"
#include "kernels/batch_norm.h"
#include "kernels/cpu/spans.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_choices.h"
#include "kernels/loss.h"
#include "kernels/pooling.h"
#include "kernels/update.h"

namespace lockstep {

// Below this many elements one thread is done before a team is awake.
constexpr std::int64_t kParallelElements = 1 << 14;

std::unique_ptr<AffineKernel> make_cpu_convolution(const ConvolutionShape& shape, const Layout& input,
                                                   KernelChoices& choices);
std::unique_ptr<AffineKernel> make_cpu_linear(const LinearShape& shape, const Layout& input,
                                              KernelChoices& choices);
std::unique_ptr<BatchNormKernel> make_cpu_batch_norm(const BatchNormOptions& options, const Layout& input);
std::unique_ptr<PoolingKernel> make_cpu_pooling(const PoolingOptions& options, const Layout& input);
std::unique_ptr<ReorderKernel> make_cpu_reorder(const Layout& from, const Layout& to);
std::unique_ptr<ImageInputKernel> make_cpu_image_input(const ImageInput& input);

Peak cpu_measure_peak();
void cpu_activation_forward(const ActivationForward& arguments);
void cpu_activation_backward(const ActivationBackward& arguments);
void cpu_add(const Addition& arguments);
void cpu_sum_into(const SumInto& arguments);
void cpu_scale(const Scaling& arguments);
void cpu_cast(const Cast& arguments);
void cpu_all_finite(const FiniteCheck& arguments);
void cpu_dropout(const DropoutArguments& arguments);
void cpu_softmax_cross_entropy(const SoftmaxCrossEntropy& arguments);
void cpu_update(const Update& update, const UpdateRule& rule);
void cpu_restore_if_skipped(const Restore& arguments);

}  // namespace lockstep
