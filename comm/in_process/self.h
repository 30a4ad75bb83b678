// SPDX-License-Identifier: Apache-2.0
//
// The communicator of a world of one rank, as part of a job.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace lockstep {

// Every collective is the identity. On a CPU the calling thread does it, before the call returns.
std::unique_ptr<Communicator> make_self_communicator(Device device, std::shared_ptr<JobState> job);

}  // namespace lockstep
