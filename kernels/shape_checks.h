// SPDX-License-Identifier: Apache-2.0
//
// Checks of the arguments that kernels are planned for, on every device. Each throws ConfigError that names
// the invalid number.
#pragma once

#include "core/tensor/layout.h"
#include "kernels/affine.h"
#include "kernels/batch_norm.h"
#include "kernels/color_jitter.h"
#include "kernels/image_input.h"
#include "kernels/loss.h"
#include "kernels/pooling.h"

namespace lockstep {

void check_convolution(const ConvolutionShape& shape, const Layout& input);
void check_linear(const LinearShape& shape, const Layout& input);
void check_batch_norm(const BatchNormOptions& options, const Layout& input);
void check_pooling(const PoolingOptions& options, const Layout& input);
void check_output_loss(const OutputLoss& loss);
void check_image_input(const ImageInput& input);
void check_color_jitter(const ColorJitter& jitter, std::int64_t channels);

}  // namespace lockstep
