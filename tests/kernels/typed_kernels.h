// SPDX-License-Identifier: Apache-2.0
//
// Runs planned kernels on the same numbers in any type and layout and on any device, so that tests can
// compare the results.
#pragma once

#include <vector>

#include "tests/kernels/typed_tensor.h"

namespace lockstep {

// The activation layouts of a GPU: plain, channels last, and channels last with padded channels.
std::vector<Layout> cuda_layouts_of(const Shape& shape, DType type);

// The plain results of training, backward and evaluation. Backward writes the residual's gradient over y's
// gradient and adds to the parameters' gradients. The inputs are the same in every type.
std::vector<Values> run_batch_norm(const Lab& lab, BatchNormKernel& kernel, const BatchNormOptions& options);
// Returns the output and the input's gradient.
std::vector<Values> run_pooling(const Lab& lab, PoolingKernel& kernel);

}  // namespace lockstep
