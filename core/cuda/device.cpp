// SPDX-License-Identifier: Apache-2.0
#include "core/device.h"

#include <mutex>
#include <set>

#include <cuda_runtime_api.h>

#include "core/cuda/check.h"

namespace lockstep {
namespace {

// As nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid, bool mig) {
  std::string text = mig ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

void require_cuda_device(Device device) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    cudaGetLastError();
    throw ConfigError(fmt::format(
        "{} was asked for, but there is no CUDA device ({}): use --device cpu, or install a driver",
        to_string(device), cudaGetErrorString(counted)));
  }
  if (device.index < 0 || device.index >= count) {
    throw ConfigError(fmt::format(
        "{} was asked for, but {} CUDA devices are visible: start at most {} ranks on this machine, "
        "or check CUDA_VISIBLE_DEVICES",
        to_string(device), count, count));
  }
}

// By default a thread that waits for a stream spins on a core until the device is there. A node has a rank
// for each GPU, and many of them wait at the same time, for each other's gradients: the loaders' threads need
// these cores. What sleeping adds, some tens of microseconds, is hidden, since the host is ahead of the
// device. Events have a flag of their own for the same (stream.cpp).
void open_device(Device device) {
  require_cuda_device(device);
  make_current(device);
  static std::mutex mutex;
  static std::set<int> told;
  const std::lock_guard lock(mutex);
  if (told.contains(device.index)) return;
  CUDA_CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));  // as well if there is a context already
  told.insert(device.index);
}

CudaStatus cuda_status() {
  CudaStatus status{.built = true};
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);  // 0 without a driver
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    status.message = fmt::format("runtime {}, no driver on this machine", version_text(runtime));
    return status;
  }
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  status.message = fmt::format("runtime {}, driver for {}", version_text(runtime), version_text(driver));
  if (counted != cudaSuccess) {
    cudaGetLastError();  // an answer here, no error for whoever checks next
    status.message += fmt::format(", no device: {}", cudaGetErrorString(counted));
    return status;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    const std::string name = properties.name;
    const bool mig = name.find(" MIG ") != std::string::npos;
    status.devices.push_back({.name = name,
                              .uuid = uuid_text(properties.uuid, mig),
                              .memory_bytes = properties.totalGlobalMem,
                              .compute_capability = 10 * properties.major + properties.minor,
                              .pci_address = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                                         properties.pciBusID, properties.pciDeviceID)});
  }
  return status;
}

}  // namespace lockstep
