// SPDX-License-Identifier: Apache-2.0
//
// Factories of the planned kernels that use no library.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace lockstep {

std::unique_ptr<BatchNormKernel> make_cuda_batch_norm(const BatchNormOptions& options, const Layout& input);
std::unique_ptr<PoolingKernel> make_cuda_pooling(const PoolingOptions& options, const Layout& input);
std::unique_ptr<ReorderKernel> make_cuda_reorder(const Layout& from, const Layout& to);
std::unique_ptr<ImageInputKernel> make_cuda_image_input(const ImageInput& input);
// Layouts are channels last; those of concatenations have no padding.
UpsamplingPlan plan_cuda_upsampling(std::int64_t factor, const Layout& input);
ConcatenationPlan plan_cuda_concatenation(const Layout& a, const Layout& b);
Layout cuda_pixel_rows(const Shape& shape, DType type);

}  // namespace lockstep
