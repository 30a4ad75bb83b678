// SPDX-License-Identifier: Apache-2.0
//
// Device: where memory lies and work runs, as a value. cuda_status() reports the devices of the linked
// backend: a build without CUDA links core/no_cuda, which has none.
#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

enum class DeviceKind { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  auto operator<=>(const Device&) const = default;
};

inline std::string to_string(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

struct CudaDevice {
  std::string name;
  std::string uuid;  // "GPU-...", or "MIG-..." for a slice of a GPU (Multi-Instance GPU)
  std::size_t memory_bytes = 0;
  int compute_capability = 0;  // 90 for 9.0
  std::string pci_address;     // "0000:3b:00.0"
  std::string unusable = {};   // the reason why kernels of this build do not run there; empty: they do
  bool is_slice() const { return uuid.starts_with("MIG-"); }
};

struct CudaStatus {
  bool built = false;   // linked with core/cuda
  std::string message;  // the reason if there is no device, else the driver and runtime versions
  std::vector<CudaDevice> devices;
};

// Never throws: a missing driver is reported in message.
CudaStatus cuda_status();

// CUDA's properties of a GPU; empty for the CPU.
inline std::optional<CudaDevice> cuda_device(Device device) {
  if (device.kind != DeviceKind::cuda) return std::nullopt;
  const CudaStatus cuda = cuda_status();
  const auto index = static_cast<std::size_t>(device.index);
  return index < cuda.devices.size() ? std::optional(cuda.devices[index]) : std::nullopt;
}

}  // namespace lockstep
