// SPDX-License-Identifier: Apache-2.0
//
// What every function of the emulated cuBLASLt does around its work: the fault that was asked for, and a
// refusal as a status and a line on stderr that says why.
#pragma once

#include <new>

#include "tests/cuda_emulator/libraries/cublas_problem.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator::cublas {

// Says why on stderr. Returns the status.
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
    return refused(function, CUBLAS_STATUS_ALLOC_FAILED, "out of the host's memory");
  }
}

}  // namespace lockstep::emulator::cublas
