// SPDX-License-Identifier: Apache-2.0
//
// The options of NCCL's communicators as ncclConfig_t, and what a version of NCCL lacks of them. The table of
// options, their costs and conditions is in comm/nccl/README.md.
#pragma once

#include <string>
#include <vector>

#include <nccl.h>

#include "comm/world.h"

namespace lockstep {

// The version of the library, as NCCL_VERSION_CODE of 2.9 and newer: 22809 is 2.28.9.
int nccl_library_version();
std::string nccl_version_text(int version);

// name: of the communicator, for NCCL's log, profilers and tools. It must outlive the configuration. Options
// that need a newer version than `version` are left to NCCL.
ncclConfig_t nccl_configuration(const DeviceCommunicatorOptions& options, const char* name, int version);

// One sentence for each option that is set and that this version of NCCL, or of the header that this was
// compiled with, does not have: its key, the version that it needs, and what happens instead.
std::vector<std::string> missing_in_nccl(const DeviceCommunicatorOptions& options, int version);

// The kind of memory that this version of NCCL can use, at most the requested one.
RegisteredMemory usable_memory(RegisteredMemory requested, int version);

// ncclCommWindowRegister() and ncclCommWindowDeregister(), or ncclInvalidUsage without them.
ncclResult_t register_window(ncclComm_t communicator, void* data, std::size_t bytes, void** window);
ncclResult_t deregister_window(ncclComm_t communicator, void* window);

}  // namespace lockstep
