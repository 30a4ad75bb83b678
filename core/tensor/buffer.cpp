// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/buffer.h"

#include <cstdlib>
#include <utility>

#include "core/backend_factories.h"

namespace lockstep {
std::size_t available_memory(Device device) {
  return device.kind == DeviceKind::cpu ? detail::available_cpu_memory()
                                        : detail::available_cuda_memory(device);
}

std::optional<DeviceMemoryUse> device_memory_use(Device device) {
  if (is_host_memory(device)) return std::nullopt;
  return detail::cuda_memory_use(device);
}

bool is_host_memory(Device device) { return device.kind == DeviceKind::cpu; }

Buffer::Buffer(std::size_t bytes, Device device, MemoryKind kind) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  if (device.kind == DeviceKind::cpu) {
    data_ = static_cast<std::byte*>(detail::allocate_cpu(bytes, kind));
    release_ = &std::free;
    return;
  }
  detail::CudaAllocation allocation = detail::allocate_cuda(bytes, device, kind);
  data_ = static_cast<std::byte*>(allocation.data);
  release_ = std::move(allocation.release);
}

Buffer Buffer::adopt(void* data, std::size_t bytes, Device device, std::function<void(void*)> release) {
  Buffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  buffer.device_ = device;
  buffer.release_ = std::move(release);
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer moved(std::move(other));  // frees this buffer's old memory here, not when `other` ends
  std::swap(data_, moved.data_);
  std::swap(bytes_, moved.bytes_);
  std::swap(device_, moved.device_);
  std::swap(release_, moved.release_);
  return *this;
}

Buffer::~Buffer() {
  if (release_) release_(data_);
}

bool Buffer::contains(const void* address, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(address);
  return begin >= data_ && begin <= data_ + bytes_ &&
         bytes <= static_cast<std::size_t>(data_ + bytes_ - begin);
}

}  // namespace lockstep
