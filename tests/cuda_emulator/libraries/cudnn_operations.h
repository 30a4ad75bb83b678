// SPDX-License-Identifier: Apache-2.0
//
// What finalizing makes of a graph's descriptors: tensors, the settings of operations, operations and the
// graph itself, checked against each other. Each throws a Refusal for what cuDNN refuses or nobody emulates.
#pragma once

#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"

namespace lockstep::emulator::cudnn {

Body make_tensor(const Descriptor& d);
Body make_convolution(const Descriptor& d);
Body make_pointwise(const Descriptor& d);
Body make_convolution_operation(const Descriptor& d);
Body make_pointwise_operation(const Descriptor& d);
Body make_statistics_operation(const Descriptor& d);
Body make_reduction_operation(const Descriptor& d);
Body make_graph(const Descriptor& d);

}  // namespace lockstep::emulator::cudnn
