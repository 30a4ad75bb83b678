// SPDX-License-Identifier: Apache-2.0
//
// Owning handles for cuBLASLt's objects, and CUBLAS_CHECK.
#pragma once

#include <cublasLt.h>

#include "core/error.h"
#include "kernels/cuda/handle.h"

namespace lockstep {

namespace detail {
inline void check_cublas(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(exit_code::failed,
              fmt::format("{}:{}: {} failed on {}: {} ({})", file, line, call, current_place(),
                          cublasLtGetStatusString(status), cublasLtGetStatusName(status)));
}
}  // namespace detail
// Throws Error with the failing call and cuBLAS's description of the error.
#define CUBLAS_CHECK(call) ::lockstep::detail::check_cublas((call), #call, __FILE__, __LINE__)

using CublasHandle = Handle<cublasLtHandle_t, cublasLtDestroy>;
using MatmulDescriptor = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using MatmulPreference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

inline CublasHandle make_cublas_handle() {
  cublasLtHandle_t handle = nullptr;
  CUBLAS_CHECK(cublasLtCreate(&handle));
  return CublasHandle(handle);
}

}  // namespace lockstep
