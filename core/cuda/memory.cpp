// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <mutex>

#include "core/backend_factories.h"
#include "core/cuda/check.h"
#include "core/cuda/release.h"

namespace lockstep {
namespace {

// Throws MemoryError if memory ran out, which the user can act on, and Error for any other failure of the
// call.
void check_allocation(cudaError_t status, const char* call, std::size_t bytes, Device device) {
  if (status != cudaErrorMemoryAllocation) return detail::check_cuda(status, call, __FILE__, __LINE__);
  cudaGetLastError();  // clears the error: the exception reports it
  throw MemoryError(fmt::format("{}: out of memory: {} of {} bytes failed, {} bytes are available",
                                to_string(device), call, bytes, available_memory(device)));
}

struct DeviceMemory {
  std::size_t available = 0, total = 0;
};

// For each device, the memory in use at this process's first query and the bytes of this process's Buffers.
class MemoryBooks {
 public:
  // The first call for a device records the memory that is already in use (at_start).
  DeviceMemory read(Device device) {
    open_device(device);
    DeviceMemory memory;
    CUDA_CHECK(cudaMemGetInfo(&memory.available, &memory.total));
    const std::lock_guard lock(mutex_);
    entries_.try_emplace(device.index, Entry{.at_start = memory.total - memory.available});
    return memory;
  }
  void count(Device device, std::ptrdiff_t bytes) {
    const std::lock_guard lock(mutex_);
    entries_[device.index].buffers += bytes;
  }
  DeviceMemoryUse use(Device device) {
    const DeviceMemory memory = read(device);
    const std::lock_guard lock(mutex_);
    const Entry& entry = entries_[device.index];
    DeviceMemoryUse use{.total = memory.total,
                        .at_start = entry.at_start,
                        .buffers = static_cast<std::size_t>(entry.buffers),
                        .available = memory.available};
    const std::size_t known = use.at_start + use.buffers + use.available;
    use.libraries = use.total > known ? use.total - known : 0;
    return use;
  }

 private:
  struct Entry {
    std::size_t at_start = 0;
    std::ptrdiff_t buffers = 0;
  };
  std::mutex mutex_;
  std::map<int, Entry> entries_;
};

// Never destroyed: Buffers that are freed at the end of the process still update it.
MemoryBooks& memory_books() {
  static auto& books = *new MemoryBooks;
  return books;
}

}  // namespace

std::size_t detail::available_cuda_memory(Device device) { return memory_books().read(device).available; }

DeviceMemoryUse detail::cuda_memory_use(Device device) { return memory_books().use(device); }

void detail::count_cuda_memory(Device device, std::ptrdiff_t bytes) { memory_books().count(device, bytes); }

detail::CudaAllocation detail::allocate_cuda(std::size_t bytes, Device device, MemoryKind kind) {
  open_device(device);
  void* data = nullptr;
  if (kind == MemoryKind::pinned_host) {
    check_allocation(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cudaHostAlloc", bytes, {});
    std::memset(data, 0, bytes);
    return {data, [device](void* memory) { release_on(device, "cudaFreeHost", cudaFreeHost, memory); }};
  }
  memory_books().read(device);
  check_allocation(cudaMalloc(&data, bytes), "cudaMalloc", bytes, device);
  count_cuda_memory(device, static_cast<std::ptrdiff_t>(bytes));
  CUDA_CHECK(cudaMemset(data, 0, bytes));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));  // zeroed before any non-blocking stream can see it
  return {data, [device, bytes](void* memory) {
            count_cuda_memory(device, -static_cast<std::ptrdiff_t>(bytes));
            release_on(device, "cudaFree", cudaFree, memory);
          }};
}

}  // namespace lockstep
