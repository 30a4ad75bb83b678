// SPDX-License-Identifier: Apache-2.0
//
// NCCL_CHECK(call): throws Error with the failing call, the rank and NCCL's message.
#pragma once

#include <string>

#include <nccl.h>

#include "core/error.h"

namespace lockstep {

// NCCL's name of a status, followed by its last error message.
inline std::string nccl_words(ncclResult_t status) {
  const std::string last = ncclGetLastError(nullptr);
  return fmt::format("{}{}{}", ncclGetErrorString(status), last.empty() ? "" : ": ", last);
}

// After a lost peer or a network error the job can be resumed.
inline int exit_code_of(ncclResult_t status) {
  return status == ncclRemoteError || status == ncclSystemError ? exit_code::resumable : exit_code::failed;
}

namespace detail {
inline void check_nccl(ncclResult_t status, const char* call, const char* file, int line) {
  if (status == ncclSuccess) return;
  throw Error(exit_code_of(status), fmt::format("{}:{}: {} failed on {}: {}", file, line, call,
                                                current_place(), nccl_words(status)));
}
}  // namespace detail

#define NCCL_CHECK(call) ::lockstep::detail::check_nccl((call), #call, __FILE__, __LINE__)

}  // namespace lockstep
