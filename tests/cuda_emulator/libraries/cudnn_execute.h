// SPDX-License-Identifier: Apache-2.0
//
// A plan on a variant pack's memory.
#pragma once

#include <map>

#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"

namespace lockstep::emulator::cudnn {

struct Execution {
  const Plan* plan;
  std::map<std::int64_t, void*> memory;  // by the tensors' ids
  void* workspace;

  // Computes, in a stream's order.
  void run() const;
};

// Throws Refusal when a plan cannot be run so on the device.
Execution make_execution(const Descriptor& plan, const Descriptor& variant_pack, int device);

}  // namespace lockstep::emulator::cudnn
