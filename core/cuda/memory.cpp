// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "core/backend_factories.h"
#include "core/cuda/check.h"
#include "core/cuda/release.h"

namespace lockstep {
namespace {

// Memory that ran out is the user's to know about; anything else is a failed call.
void check_allocation(cudaError_t status, const char* call, std::size_t bytes, Device device) {
  if (status != cudaErrorMemoryAllocation) return detail::check_cuda(status, call, __FILE__, __LINE__);
  cudaGetLastError();  // the exception carries it now
  throw MemoryError(fmt::format("{} cannot have {} bytes of memory: {} failed, {} bytes are available",
                                to_string(device), bytes, call, available_memory(device)));
}

}  // namespace

std::size_t detail::available_cuda_memory(Device device) {
  make_current(device);
  std::size_t available = 0;
  std::size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return available;
}

detail::CudaAllocation detail::allocate_cuda(std::size_t bytes, Device device, MemoryKind kind) {
  open_device(device);
  void* data = nullptr;
  if (kind == MemoryKind::pinned_host) {
    check_allocation(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cudaHostAlloc", bytes, {});
    std::memset(data, 0, bytes);
    return {data, [device](void* memory) { release_on(device, "cudaFreeHost", cudaFreeHost, memory); }};
  }
  check_allocation(cudaMalloc(&data, bytes), "cudaMalloc", bytes, device);
  CUDA_CHECK(cudaMemset(data, 0, bytes));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));  // zeroed before any non-blocking stream can see it
  return {data, [device](void* memory) { release_on(device, "cudaFree", cudaFree, memory); }};
}

}  // namespace lockstep
