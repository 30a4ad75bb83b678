// SPDX-License-Identifier: Apache-2.0
//
// In place of CUDA's header of this name: the few types and calls of the runtime that kernels/cuda needs, for
// one device that is the CPU.
#pragma once

#include <cstddef>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorCudartUnloading = 4,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorContextIsDestroyed = 709,
};
using cudaStream_t = struct CUstream_st*;

inline const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration" : "cudaError";
}
inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "error";
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
