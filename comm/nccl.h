// SPDX-License-Identifier: Apache-2.0
//
// The seam between World and the device communicator that is linked: nccl/ or no_nccl/.
#pragma once

#include <memory>

#include "comm/world.h"

namespace lockstep {

struct MpiSession;

// Collective over the world; see World::communicator. Throws ConfigError when NCCL was not built in.
std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<MpiSession> session, Device device,
                                                     Communicator& host,
                                                     const DeviceCommunicatorOptions& options);

}  // namespace lockstep
