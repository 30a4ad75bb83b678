// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/device_use.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "launch/observe/monitor/nvml.h"

namespace lockstep {
namespace {

constexpr int kMuchUse = 5;  // tenths: half of its time, or half of its memory

int tenths(double share) { return static_cast<int>(10 * std::clamp(share, 0.0, 1.0)); }

// True if a process reads this pipe. Opening write-only with O_NONBLOCK neither blocks nor writes.
bool is_read(const std::filesystem::path& pipe) {
  const int descriptor = open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  close(descriptor);
  return true;
}

// A dead daemon leaves its files, so its process is checked, which may belong to another user. Without a
// readable process number it counts as running.
bool daemon_runs(const std::filesystem::path& folder) {
  pid_t process = 0;
  std::ifstream file(folder / "nvidia-cuda-mps-control.pid");
  return !(file >> process) || process <= 0 || kill(process, 0) == 0 || errno != ESRCH;
}

}  // namespace

std::map<std::string, int> use_of_devices(std::span<const CudaDevice> devices) {
  std::map<std::string, int> use;
  const Nvml nvml;
  if (!nvml.problem().empty()) {
    log::shared_warning(
        "world.device = \"idle\": the use of GPUs is unknown ({}); ranks take the GPUs that no other job "
        "has, in their order",
        nvml.problem());
    return use;
  }
  for (const CudaDevice& device : devices) {
    if (!device.unusable.empty()) continue;
    const DeviceFigures figures = NvmlDevice(nvml, device.uuid, device.pci_address).sample_use();
    int& of_device = use[device.uuid];
    if (figures.utilization) of_device += tenths(*figures.utilization / 100);
    if (figures.memory_used_bytes && figures.memory_bytes.value_or(0) > 0)
      of_device += tenths(static_cast<double>(*figures.memory_used_bytes) /
                          static_cast<double>(*figures.memory_bytes));
  }
  return use;
}

void warn_of_use(const std::string& uuid, int use) {
  if (use < kMuchUse) return;
  log::warning(
      "world.device = \"idle\": other programs use {}, too, and no GPU is used less; steps take longer, and "
      "memory may not suffice",
      uuid);
}

std::optional<std::string> mps_folder() {
  const char* told = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::filesystem::path folder = told != nullptr && *told != '\0' ? told : "/tmp/nvidia-mps";
  const std::filesystem::path control = folder / "control";
  struct stat status = {};
  if (stat(control.c_str(), &status) != 0) return std::nullopt;
  const bool serves =
      (S_ISFIFO(status.st_mode) && is_read(control)) || (S_ISSOCK(status.st_mode) && daemon_runs(folder));
  return serves ? std::optional(folder.string()) : std::nullopt;
}

bool is_vgpu(const CudaDevice& device) {
  const Nvml nvml;
  return NvmlDevice(nvml, device.uuid, device.pci_address).is_vgpu();
}

std::string told_of_sharing(const CudaDevice& device) {
  const std::optional<std::string> mps = mps_folder();
  const bool vgpu = is_vgpu(device);
  if (!mps && !vgpu) return {};
  return fmt::format(
      "{}: other processes may compute there at the same time, so times and utilisation are not those of "
      "this training alone",
      mps && vgpu ? "a vGPU, served by MPS (" + *mps + ")"
      : vgpu      ? "a vGPU, a part of a GPU"
                  : "GPUs are served by MPS (" + *mps + ")");
}

}  // namespace lockstep
