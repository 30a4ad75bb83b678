// SPDX-License-Identifier: Apache-2.0
//
// Buffer: owns memory on a device; a Tensor is a view into one. Memory is zeroed, unless it is untouched, and
// aligned to kAlignment. The destructor frees it: no work may still use the memory then.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "core/device.h"

namespace lockstep {

// Every buffer starts at, and every planned offset is a multiple of, this many bytes (a cache line; a full
// AVX-512 register; four 16-byte GPU accesses).
inline constexpr std::size_t kAlignment = 64;

constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

enum class MemoryKind {
  device,       // plain memory of the device
  pinned_host,  // host memory the device can copy from asynchronously; plain memory on the CPU
  untouched,    // as `device`, for code that needs addresses only: a CPU's pages are not used, nor zeroed
};

// Bytes that can still be allocated. On a GPU: the memory that the driver reports as free. On the CPU: the
// memory that is available without swapping and within the limits of this process's control groups (a batch
// job, a container). Other processes may take it first.
std::size_t available_memory(Device device);

// Use of a GPU's memory, in bytes.
struct DeviceMemoryUse {
  std::size_t total = 0;
  std::size_t at_start = 0;   // at this process's first query: its context, and other processes
  std::size_t buffers = 0;    // Buffers of this process
  std::size_t libraries = 0;  // added since then outside Buffers: libraries, loaded kernels, other processes
  std::size_t available = 0;
};
// The current use as the driver reports it; nothing on a CPU.
std::optional<DeviceMemoryUse> device_memory_use(Device device);

// True for a CPU: its memory is host memory, which the ranks of a node share and which needs no copies.
bool is_host_memory(Device device);

class Buffer {
 public:
  Buffer() = default;
  // Throws ConfigError if the device's backend was not built, MemoryError if memory runs out.
  Buffer(std::size_t bytes, Device device, MemoryKind kind = MemoryKind::device);
  // Takes ownership of memory allocated elsewhere (a shared window, an NCCL allocation). release must not
  // throw.
  static Buffer adopt(void* data, std::size_t bytes, Device device, std::function<void(void*)> release);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool contains(const void* address, std::size_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  std::function<void(void*)> release_;
};

}  // namespace lockstep
