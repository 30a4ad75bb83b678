// SPDX-License-Identifier: Apache-2.0
//
// The bodies that finalizing creates for a graph's descriptors: tensors, settings of operations, operations
// and the graph itself. They are checked against each other. Each function throws a Refusal for descriptors
// that cuDNN refuses or that are not emulated.
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
