// SPDX-License-Identifier: Apache-2.0
//
// Buffer: memory on a device, owned. The only owner there is; a Tensor is a view into one. Memory is zeroed
// and aligned to kAlignment. Freeing is the destructor's: nothing may still use the memory then.
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
};

// Bytes that could still be allocated: what the driver calls free, on the CPU what the system could give
// without swapping and this process's control group allows. Others may take them first.
std::size_t available_memory(Device device);

// How a GPU's memory is taken, in bytes.
struct DeviceMemoryUse {
  std::size_t total = 0;
  std::size_t at_start = 0;   // when this process first asked: its context, and other processes
  std::size_t buffers = 0;    // Buffers of this process
  std::size_t libraries = 0;  // since the start by anything else: libraries, loaded kernels, other processes
  std::size_t available = 0;
};
// As the driver counts it, now; nothing on a CPU.
std::optional<DeviceMemoryUse> device_memory_use(Device device);

// Whether the device's memory is the host's, which all ranks of a node share and to which nothing needs to be
// copied: a CPU's.
bool is_host_memory(Device device);

class Buffer {
 public:
  Buffer() = default;
  // Throws ConfigError when the device was not built in, MemoryError when memory runs out.
  Buffer(std::size_t bytes, Device device, MemoryKind kind = MemoryKind::device);
  // Takes over memory made elsewhere (a shared window, an NCCL allocation); release must not throw.
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
