// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/nvml_calls.h"

namespace lockstep {
namespace {

constexpr NvmlResult kNvmlInsufficientSize = 7;

// Retries with a larger buffer, as processes may start between the calls.
template <typename Ask>
std::vector<NvmlProcess> processes_by(Ask ask) {
  std::vector<NvmlProcess> processes(16);
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto count = static_cast<unsigned>(processes.size());
    const NvmlResult result = ask(&count, processes.data());
    if (result == kNvmlSuccess && count <= processes.size()) {
      processes.resize(count);
      return processes;
    }
    if (result != kNvmlInsufficientSize) break;
    processes.resize(count + processes.size());
  }
  return {};
}

}  // namespace

std::vector<DeviceContext> Nvml::contexts() const {
  std::vector<DeviceContext> all;
  unsigned devices = 0;
  if (!calls_) return all;
  const Calls& c = *calls_;
  if (!c.count.function || !c.by_index.function || !c.uuid.function || !c.processes.function) return all;
  if (c.count.function(&devices) != kNvmlSuccess) return all;
  for (unsigned index = 0; index < devices; ++index) {
    NvmlDeviceRef device = nullptr;
    if (c.by_index.function(index, &device) != kNvmlSuccess) continue;
    DeviceContext context;
    std::array<char, 96> uuid = {};
    if (c.uuid.function(device, uuid.data(), uuid.size() - 1) == kNvmlSuccess) context.uuid = uuid.data();
    NvmlPciInfo info = {};
    if (c.pci.function != nullptr && c.pci.function(device, &info) == kNvmlSuccess) {
      info.bus_id.back() = '\0';
      context.pci_bus_id = info.bus_id.data();
    }
    NvmlUtilization utilization = {};
    if (c.utilization.function != nullptr && c.utilization.function(device, &utilization) == kNvmlSuccess)
      context.utilization = utilization.gpu;
    for (const NvmlProcess& each : processes_by([&](unsigned*count, NvmlProcess*processes) {
           return c.processes.function(device, count, processes);
         })) {
      context.process = each.process;
      context.memory_bytes.reset();
      if (each.memory_bytes != ~0ull) context.memory_bytes = each.memory_bytes;
      all.push_back(context);
    }
  }
  return all;
}

}  // namespace lockstep
