// SPDX-License-Identifier: Apache-2.0
//
// What planned kernels compute on the same numbers, in any type, layout and on any device: to be compared.
#pragma once

#include <vector>

#include "tests/kernels/typed_tensor.h"

namespace lockstep {

// The layouts an activation may come in on a GPU: plain, channels last, and with channels padded.
std::vector<Layout> cuda_layouts_of(const Shape& shape, DType type);

// What training, backward (the residual's gradient in the place of y's; the parameters' added to) and
// evaluation leave behind, plain. The inputs are the same in every type.
std::vector<Values> run_batch_norm(const Lab& lab, BatchNormKernel& kernel, const BatchNormOptions& options);
// The output, and the input's gradient.
std::vector<Values> run_pooling(const Lab& lab, PoolingKernel& kernel);

}  // namespace lockstep
