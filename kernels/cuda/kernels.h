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

}  // namespace lockstep
