// SPDX-License-Identifier: Apache-2.0
//
// The execution of a plan on the memory of a variant pack.
#pragma once

#include <map>

#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"

namespace lockstep::emulator::cudnn {

struct Execution {
  const Plan* plan;
  std::map<std::int64_t, void*> memory;  // by tensor id
  void* workspace;

  // Does the computation; called in stream order.
  void run() const;
};

// Throws Refusal if the plan cannot run on the device with this variant pack.
Execution make_execution(const Descriptor& plan, const Descriptor& variant_pack, int device);

}  // namespace lockstep::emulator::cudnn
