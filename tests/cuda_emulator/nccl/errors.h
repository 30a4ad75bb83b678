// SPDX-License-Identifier: Apache-2.0
//
// What the emulated NCCL says when it refuses a call or finds a mistake: one line on stderr, which
// ncclGetLastError() then answers, too; and a status for the caller.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <nccl.h>

namespace lockstep::emulator {

// Thrown inside of a call, returned by it.
struct NcclError : std::runtime_error {
  NcclError(ncclResult_t with, const std::string& message) : std::runtime_error(message), status(with) {}
  ncclResult_t status;
};

// Says it on stderr and keeps it for ncclGetLastError(). Returns the status.
ncclResult_t complain(ncclResult_t status, std::string_view message);
// Of this process, by any thread; stays readable for ever.
const char* last_complaint();

// The status that LOCKSTEP_EMULATED_FAULTS asks this call of the function to return.
ncclResult_t requested_fault(const char* function);

}  // namespace lockstep::emulator
