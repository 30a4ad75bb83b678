// SPDX-License-Identifier: Apache-2.0
#include "core/device.h"

#include <mutex>
#include <set>

#include <cuda_runtime_api.h>

#include "core/cuda/check.h"

namespace lockstep {
namespace {

// The UUID in nvidia-smi's format.
std::string uuid_text(const cudaUUID_t& uuid, bool mig) {
  std::string text = mig ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// A GPU runs no code for higher compute capabilities than its own.
std::string why_unusable(int capability) {
  constexpr int kLowest = LOCKSTEP_LOWEST_CAPABILITY;  // of the code in this build; 0: not known
  if (capability >= kLowest) return {};
  return fmt::format(
      "compute capability {}.{}; this build has code for {}.{} and above, configure it with "
      "-DCMAKE_CUDA_ARCHITECTURES={}",
      capability / 10, capability % 10, kLowest / 10, kLowest % 10, capability);
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

void require_cuda_device(Device device) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    cudaGetLastError();
    throw ConfigError(
        fmt::format("{} is selected, but there is no CUDA device ({}): use --device cpu, or install a driver",
                    to_string(device), cudaGetErrorString(counted)));
  }
  if (device.index < 0 || device.index >= count) {
    throw ConfigError(fmt::format(
        "{} is selected, but the number of visible CUDA devices is {}: start at most that many ranks on "
        "this machine, or check CUDA_VISIBLE_DEVICES",
        to_string(device), count));
  }
}

// By default a host thread that waits for a stream spins on a core. A node runs one rank per GPU, many of
// them wait for each other's gradients at the same time, and the loaders' threads need these cores; so a
// waiting thread sleeps. Waking up takes some tens of microseconds, which are hidden because the host runs
// ahead of the device. Events have a separate flag for this (stream.cpp).
void open_device(Device device) {
  require_cuda_device(device);
  make_current(device);
  static std::mutex mutex;
  static std::set<int> told;
  const std::lock_guard lock(mutex);
  if (told.contains(device.index)) return;
  CUDA_CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));  // also works if the device has a context
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
    cudaGetLastError();  // clears the error: the message reports it
    status.message += fmt::format(", no device: {}", cudaGetErrorString(counted));
    return status;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties = {};
    if (const cudaError_t read = cudaGetDeviceProperties(&properties, i); read != cudaSuccess) {
      cudaGetLastError();
      // It is listed, so that the later devices keep their numbers.
      status.devices.push_back(
          {.name = "unreadable GPU",
           .unusable = fmt::format("its properties cannot be read ({}), check the driver with nvidia-smi",
                                   cudaGetErrorString(read))});
      continue;
    }
    const std::string name = properties.name;
    const bool mig = name.find(" MIG ") != std::string::npos;
    const int capability = 10 * properties.major + properties.minor;
    status.devices.push_back({.name = name,
                              .uuid = uuid_text(properties.uuid, mig),
                              .memory_bytes = properties.totalGlobalMem,
                              .compute_capability = capability,
                              .pci_address = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                                         properties.pciBusID, properties.pciDeviceID),
                              .unusable = why_unusable(capability)});
  }
  return status;
}

}  // namespace lockstep
