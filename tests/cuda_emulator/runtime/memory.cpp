// SPDX-License-Identifier: Apache-2.0
//
// Device memory and pinned memory, copies and fills. device_memory.h manages addresses and access rights.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/cuda_emulator/runtime/books.h"
#include "tests/cuda_emulator/runtime/device_memory.h"

namespace lockstep::emulator {
namespace {

constexpr int kPinned = -1;
constexpr std::size_t kAlignment = 256;

std::atomic<std::uint64_t> filled{0};

// With the lock: the allocation that contains the address.
const std::pair<const std::byte* const, Allocation>* find_allocation(const void* data) {
  const auto& all = books().allocations;
  auto found = all.upper_bound(static_cast<const std::byte*>(data));
  if (found == all.begin()) return nullptr;
  --found;
  return static_cast<const std::byte*>(data) < found->first + found->second.bytes ? &*found : nullptr;
}

enum class Home { pageable, pinned, device, outside };  // outside: starts in an allocation and ends beyond it

Home home_of(const void* data, std::size_t bytes) {
  const BooksLock lock;
  const auto* found = find_allocation(data);
  if (found == nullptr) return Home::pageable;
  if (static_cast<const std::byte*>(data) + bytes > found->first + found->second.bytes) return Home::outside;
  return found->second.device == kPinned ? Home::pinned : Home::device;
}

// Memory filled with NaNs of every type, so that reads before the first write are visible.
void* allocate_filled(std::size_t bytes, int device) {
  if (device == kPinned) {
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data != nullptr) std::memset(data, 0xff, bytes);
    return data;
  }
  void* data = allocate_device_memory(bytes);
  const DeviceWork fills;
  if (data != nullptr) std::memset(data, 0xff, bytes);
  return data;
}

// With the lock: takes `bytes` of the device's memory. Returns false if less is free.
bool take(int device, std::size_t bytes) {
  std::size_t& used = books().devices[static_cast<std::size_t>(device)].used_bytes;
  if (bytes > machine().memory_bytes - used) return false;
  used += bytes;
  return true;
}

cudaError_t keep(void** data, std::size_t bytes, int device, std::size_t granularity = 1) {
  if (data == nullptr) return cudaErrorInvalidValue;
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > machine().memory_bytes && device != kPinned) return cudaErrorMemoryAllocation;
  const std::size_t counted = (bytes + granularity - 1) / granularity * granularity;
  if (device != kPinned) {
    const BooksLock lock;
    if (!take(device, counted)) return cudaErrorMemoryAllocation;
  }
  *data = allocate_filled(bytes, device);
  if (device != kPinned) deny_host_access();
  const BooksLock lock;
  if (*data == nullptr) {
    if (device != kPinned) books().devices[static_cast<std::size_t>(device)].used_bytes -= counted;
    return cudaErrorMemoryAllocation;
  }
  books().allocations.emplace(static_cast<std::byte*>(*data),
                              Allocation{.bytes = bytes, .counted_bytes = counted, .device = device});
  return cudaSuccess;
}

// Waits for all work of the device, like CUDA, or overwrites the memory under work that still uses it.
enum class Freeing { waits, unmaps };
cudaError_t give_back(void* data, bool pinned, Freeing freeing = Freeing::waits) {
  if (data == nullptr) return cudaSuccess;
  std::vector<StreamOperationPointer> all;
  {
    const BooksLock lock;
    const auto found = books().allocations.find(static_cast<std::byte*>(data));
    if (found == books().allocations.end() || (found->second.device == kPinned) != pinned)
      return cudaErrorInvalidValue;
    if (freeing == Freeing::waits) all = last_of_all(pinned ? current_device() : found->second.device);
  }
  wait_for(all);
  Allocation allocation;
  {
    const BooksLock lock;
    const auto found = books().allocations.find(static_cast<std::byte*>(data));
    allocation = found->second;
    if (!pinned)
      books().devices[static_cast<std::size_t>(allocation.device)].used_bytes -= allocation.counted_bytes;
    books().allocations.erase(found);
  }
  if (pinned) {
    std::free(data);
  } else {
    if (freeing == Freeing::unmaps) {
      {
        const DeviceWork spoils;
        std::memset(data, 0xff, allocation.bytes);
      }
      deny_host_access();
    }
    free_device_memory(data, allocation.bytes);
  }
  return cudaSuccess;
}

bool allowed(cudaMemcpyKind kind, Home from, Home to) {
  const bool from_device = from == Home::device;
  const bool to_device = to == Home::device;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

// Returns whether a copy in the stream accesses pageable memory only when it runs.
bool is_late(cudaStream_t stream) {
  const BooksLock lock;
  return machine().pageable_late || books().held_back > 0 || stream->capture != nullptr;
}

// Pageable memory is read and written before the call returns, pinned memory when the copy runs. CUDA's
// documentation says that a copy of pageable memory "might" be synchronous, so programs must not rely on it.
// If is_late(), pageable memory is treated like pinned memory.
cudaError_t copy(const char* function, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  stream = resolve(stream);
  if (!exists(stream)) return cudaErrorInvalidResourceHandle;
  const Home source = home_of(from, bytes);
  const Home target = home_of(to, bytes);
  if (source == Home::outside || target == Home::outside) return cudaErrorInvalidValue;
  if (!allowed(kind, source, target)) return cudaErrorInvalidMemcpyDirection;
  if (bytes == 0) return cudaSuccess;
  const bool early = !is_late(stream);
  if (source == Home::pageable && early) {
    const auto* begin = static_cast<const std::byte*>(from);
    const auto staged = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
    if (const cudaError_t status = give(stream, function, [=] { std::memcpy(to, staged->data(), bytes); });
        status != cudaSuccess) {
      return status;
    }
  } else if (const cudaError_t status = give(stream, function, [=] { std::memmove(to, from, bytes); });
             status != cudaSuccess) {
    return status;
  }
  return target == Home::pageable && early ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t fill(const char* function, void* data, int value, std::size_t bytes, cudaStream_t stream) {
  stream = resolve(stream);
  if (!exists(stream)) return cudaErrorInvalidResourceHandle;
  const Home home = home_of(data, bytes);
  if (home != Home::device && home != Home::pinned) return cudaErrorInvalidValue;
  return give(stream, function, [=] {
    std::memset(data, value, bytes);
    filled += bytes;
  });
}

}  // namespace

bool is_device_memory(const void* data, std::size_t bytes, int device) {
  const BooksLock lock;
  const auto* found = find_allocation(data);
  return found != nullptr && found->second.device == device &&
         static_cast<const std::byte*>(data) + bytes <= found->first + found->second.bytes;
}

std::uint64_t filled_bytes() { return filled; }

cudaError_t allocate(void** data, std::size_t bytes, std::size_t granularity) {
  if (const cudaError_t status = enter("cudaMalloc", bytes); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  return answer(keep(data, bytes, current_device(), granularity));
}

cudaError_t unmap(void* data) {
  if (const cudaError_t status = enter(nullptr); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  return answer(give_back(data, false, Freeing::unmaps));
}

cudaError_t LibraryMemory::grow(double share_of_context) {
  if (const cudaError_t status = enter(nullptr); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  const auto bytes =
      static_cast<std::size_t>(share_of_context * static_cast<double>(machine().context_bytes));
  const BooksLock lock;
  if (!take(device_, bytes)) return answer(cudaErrorMemoryAllocation);
  bytes_ += bytes;
  return cudaSuccess;
}

LibraryMemory::~LibraryMemory() {
  const BooksLock lock;
  books().devices[static_cast<std::size_t>(device_)].used_bytes -= bytes_;
}

}  // namespace lockstep::emulator

using namespace lockstep::emulator;

extern "C" {

cudaError_t cudaMalloc(void** data, std::size_t bytes) { return allocate(data, bytes, 1); }
cudaError_t cudaFree(void* data) {
  if (const cudaError_t status = enter("cudaFree"); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  return answer(give_back(data, false));
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  if (const cudaError_t status = enter("cudaHostAlloc", bytes); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  return answer(keep(data, bytes, kPinned));
}
cudaError_t cudaFreeHost(void* data) {
  if (const cudaError_t status = enter("cudaFreeHost"); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  return answer(give_back(data, true));
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  if (const cudaError_t status = enter("cudaMemGetInfo"); status != cudaSuccess) return status;
  const BooksLock lock;
  *total = machine().memory_bytes;
  *available = *total - books().devices[static_cast<std::size_t>(current_device())].used_bytes;
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  if (const cudaError_t status = enter("cudaMemset"); status != cudaSuccess) return status;
  return answer(fill("cudaMemset", data, value, bytes, nullptr));
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t status = enter("cudaMemsetAsync"); status != cudaSuccess) return status;
  return answer(fill("cudaMemsetAsync", data, value, bytes, stream));
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t status = enter("cudaMemcpy"); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  if (const cudaError_t status = copy("cudaMemcpy", to, from, bytes, kind, nullptr); status != cudaSuccess)
    return answer(status);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const cudaError_t status = enter("cudaMemcpyAsync"); status != cudaSuccess) return status;
  return answer(copy("cudaMemcpyAsync", to, from, bytes, kind, stream));
}

}  // extern "C"
