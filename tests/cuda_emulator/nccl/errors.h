// SPDX-License-Identifier: Apache-2.0
//
// Errors of the emulated NCCL for refused calls and mistakes: one line on stderr, which ncclGetLastError()
// also returns, and a status for the caller.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <nccl.h>

namespace lockstep::emulator {

// Thrown within a call; the call returns the status.
struct NcclError : std::runtime_error {
  NcclError(ncclResult_t with, const std::string& message) : std::runtime_error(message), status(with) {}
  ncclResult_t status;
};

// Prints the message on stderr and stores it for ncclGetLastError(). Returns the status.
ncclResult_t complain(ncclResult_t status, std::string_view message);
// The last message of any thread of this process. The pointer stays valid.
const char* last_complaint();

// The status that LOCKSTEP_EMULATED_FAULTS specifies for this call of the function.
ncclResult_t requested_fault(const char* function);

}  // namespace lockstep::emulator
