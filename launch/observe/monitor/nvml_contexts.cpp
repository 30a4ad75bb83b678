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
  if (c.processes.function == nullptr || !c.count(&devices)) return all;
  for (unsigned index = 0; index < devices; ++index) {
    NvmlDeviceRef device = nullptr;
    if (!c.by_index(index, &device)) continue;
    DeviceContext context;
    std::array<char, 96> uuid = {};
    if (c.uuid(device, uuid.data(), uuid.size() - 1)) context.uuid = uuid.data();
    NvmlPciInfo info = {};
    if (c.pci(device, &info)) context.pci_bus_id = bus_id_of(info);
    NvmlUtilization utilization = {};
    if (c.utilization(device, &utilization)) context.utilization = utilization.gpu;
    for (const NvmlProcess& each : processes_by([&](unsigned*count, NvmlProcess*processes) {
           return c.processes.function(device, count, processes);
         })) {
      context.process = each.process;
      all.push_back(context);
    }
  }
  return all;
}

}  // namespace lockstep
