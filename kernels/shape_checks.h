// SPDX-License-Identifier: Apache-2.0
//
// What a kernel of any device is planned for must make sense. Each throws ConfigError that names the number
// at fault.
#pragma once

#include "core/layout.h"
#include "kernels/affine.h"
#include "kernels/batch_norm.h"
#include "kernels/color_jitter.h"
#include "kernels/image_input.h"
#include "kernels/pooling.h"

namespace lockstep {

void check_convolution(const ConvolutionShape& shape, const Layout& input);
void check_linear(const LinearShape& shape, const Layout& input);
void check_batch_norm(const BatchNormOptions& options, const Layout& input);
void check_pooling(const PoolingOptions& options, const Layout& input);
void check_image_input(const ImageInput& input);
void check_color_jitter(const ColorJitter& jitter, std::int64_t channels);

}  // namespace lockstep
