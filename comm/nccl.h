// SPDX-License-Identifier: Apache-2.0
//
// The seam between World and the device communicator that is linked: nccl/ or no_nccl/.
#pragma once

#include <memory>

#include "comm/world.h"

namespace lockstep {

// Collective over the world. Throws ConfigError when NCCL was not built in.
std::unique_ptr<Communicator> make_nccl_communicator(World& world, Device device);

}  // namespace lockstep
