// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "core/backend_factories.h"
#include "core/cuda/check.h"
#include "core/log.h"

namespace lockstep {
namespace {

void log_failure(cudaError_t status, const char* call) {
  if (status != cudaSuccess && !driver_is_gone(status))
    log::error("{}: {}", call, cudaGetErrorString(status));
}

}  // namespace

detail::CudaAllocation detail::allocate_cuda(std::size_t bytes, Device device, MemoryKind kind) {
  require_cuda_device(device);
  const DeviceGuard guard(device);
  void* data = nullptr;
  if (kind == MemoryKind::pinned_host) {
    CUDA_CHECK(cudaHostAlloc(&data, bytes, cudaHostAllocPortable));
    std::memset(data, 0, bytes);
    return {data, [](void* memory) { log_failure(cudaFreeHost(memory), "cudaFreeHost"); }};
  }
  CUDA_CHECK(cudaMalloc(&data, bytes));
  CUDA_CHECK(cudaMemset(data, 0, bytes));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));  // zeroed before any non-blocking stream can see it
  return {data, [](void* memory) { log_failure(cudaFree(memory), "cudaFree"); }};
}

}  // namespace lockstep
