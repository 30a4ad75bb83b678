// SPDX-License-Identifier: Apache-2.0
//
// The wrapper around every function of the emulated cuBLASLt: it injects a requested fault, and reports a
// Refusal as a status and a line on stderr with the reason.
#pragma once

#include <new>

#include "tests/cuda_emulator/libraries/cublas_problem.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator::cublas {

// Prints the reason on stderr and returns the status.
cublasStatus_t refused(const char* function, cublasStatus_t status, const char* why);

template <typename Work>
cublasStatus_t answer(const char* function, Work work) {
  if (const int status = injected_fault(function)) return static_cast<cublasStatus_t>(status);
  try {
    work();
    return CUBLAS_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    return refused(function, refusal.status, refusal.what());
  } catch (const std::bad_alloc&) {
    return refused(function, CUBLAS_STATUS_ALLOC_FAILED, "out of host memory");
  }
}

}  // namespace lockstep::emulator::cublas
