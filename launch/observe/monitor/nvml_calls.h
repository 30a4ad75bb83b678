// SPDX-License-Identifier: Apache-2.0
//
// The binary interface of NVIDIA's management library, as far as Nvml uses it: declarations of its nvml.h,
// and its functions, found by name if the library has them. Only for nvml*.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include <dlfcn.h>
#include <fmt/format.h>

#include "launch/observe/monitor/nvml.h"

namespace lockstep {

using NvmlResult = int;
inline constexpr NvmlResult kNvmlSuccess = 0;

struct NvmlHandle;     // nvmlDevice_t
struct NvmlGpmHandle;  // nvmlGpmSample_t
using NvmlDeviceRef = NvmlHandle*;
using NvmlGpmSampleRef = NvmlGpmHandle*;

inline constexpr unsigned kNvmlTemperatureOfGpu = 0;
inline constexpr unsigned kNvmlClockSm = 1, kNvmlClockMemory = 2;
inline constexpr unsigned kNvmlPcieSent = 0, kNvmlPcieReceived = 1;
inline constexpr unsigned kNvmlStates = 16;  // performance states
inline constexpr unsigned kNvmlFieldNvlinkSent = 138, kNvmlFieldNvlinkReceived = 139;
inline constexpr unsigned kNvmlVirtualGpu = 2;  // virtualization mode of a vGPU inside a virtual machine
inline constexpr unsigned kNvmlAllLinks = ~0u;

struct NvmlPciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  std::array<char, 32> bus_id;
};
static_assert(sizeof(NvmlPciInfo) == 68);
inline std::string bus_id_of(const NvmlPciInfo& info) {
  return {info.bus_id.begin(), std::ranges::find(info.bus_id, '\0')};
}

struct NvmlUtilization {
  unsigned gpu, memory;
};

struct NvmlMemory {
  unsigned long long total, free, used;
};

struct NvmlMemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
inline constexpr unsigned kNvmlMemoryV2 = sizeof(NvmlMemoryV2) | 2u << 24;
static_assert(kNvmlMemoryV2 == 0x02000028);

struct NvmlTemperature {
  unsigned version, sensor;
  int celsius;
};
inline constexpr unsigned kNvmlTemperatureV1 = sizeof(NvmlTemperature) | 1u << 24;
static_assert(kNvmlTemperatureV1 == 0x0100000C);

struct NvmlProcess {
  unsigned process;
  unsigned long long memory_bytes;  // all ones: unknown
  unsigned instance, compute_instance;
};
static_assert(sizeof(NvmlProcess) == 24);

union NvmlValue {
  double as_double;
  unsigned as_unsigned;
  unsigned long as_unsigned_long;
  unsigned long long as_unsigned_long_long;
  long long as_long_long;
  int as_int;
  unsigned short as_unsigned_short;
};

struct NvmlFieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  unsigned type;
  NvmlResult result;
  NvmlValue value;
};
static_assert(sizeof(NvmlFieldValue) == 40 && offsetof(NvmlFieldValue, value) == 32);

struct NvmlGpmSupport {
  unsigned version, supported;
};
inline constexpr unsigned kNvmlGpmVersion = 1;

struct NvmlGpmMetric {
  unsigned id;
  NvmlResult result;
  double value;
  const char *short_name, *long_name, *unit;
};
static_assert(sizeof(NvmlGpmMetric) == 40);

// The library's array has grown from 98 entries to hundreds, and the call does not pass its length, so this
// one has more entries than any version knows.
struct NvmlGpmMetrics {
  unsigned version, count;
  NvmlGpmSampleRef first, second;
  std::array<NvmlGpmMetric, 1024> metrics;
};
static_assert(offsetof(NvmlGpmMetrics, metrics) == 24);

// A function of the library; null if the library has none of that name.
template <typename... Parameters>
struct NvmlCall {
  const char* name;
  NvmlResult (*function)(Parameters...) = nullptr;
  // Calls it. False if the library lacks it, or if it fails.
  bool operator()(Parameters... parameters) const {
    return function != nullptr && function(parameters...) == kNvmlSuccess;
  }
};

struct Nvml::Calls {
  ~Calls() {
    shutdown();
    if (library != nullptr) dlclose(library);
  }

  template <typename... Parameters>
  void find(NvmlCall<Parameters...>& call) const {
    call.function = reinterpret_cast<NvmlResult (*)(Parameters...)>(dlsym(library, call.name));
  }
  template <typename... All>
  void find_all(All&... all) const {
    (find(all), ...);
  }

  std::string text_of(NvmlResult result) const {
    const char* text = error_string != nullptr ? error_string(result) : nullptr;
    return text != nullptr ? text : fmt::format("error {}", result);
  }

  void* library = nullptr;
  const char* (*error_string)(NvmlResult) = nullptr;
  NvmlCall<> init{"nvmlInit_v2"};
  NvmlCall<> shutdown{"nvmlShutdown"};  // set once init has succeeded
  NvmlCall<char*, unsigned> driver_version{"nvmlSystemGetDriverVersion"};
  NvmlCall<const char*, NvmlDeviceRef*> by_uuid{"nvmlDeviceGetHandleByUUID"};
  NvmlCall<const char*, NvmlDeviceRef*> by_pci{"nvmlDeviceGetHandleByPciBusId_v2"};
  NvmlCall<unsigned*> count{"nvmlDeviceGetCount_v2"};
  NvmlCall<unsigned, NvmlDeviceRef*> by_index{"nvmlDeviceGetHandleByIndex_v2"};
  NvmlCall<NvmlDeviceRef, char*, unsigned> uuid{"nvmlDeviceGetUUID"};
  NvmlCall<NvmlDeviceRef, unsigned*, NvmlProcess*> processes{"nvmlDeviceGetComputeRunningProcesses_v3"};
  NvmlCall<NvmlDeviceRef, unsigned*> is_slice{"nvmlDeviceIsMigDeviceHandle"};
  NvmlCall<NvmlDeviceRef, NvmlDeviceRef*> whole{"nvmlDeviceGetDeviceHandleFromMigDeviceHandle"};
  NvmlCall<NvmlDeviceRef, unsigned*> instance{"nvmlDeviceGetGpuInstanceId"};
  NvmlCall<NvmlDeviceRef, char*, unsigned> name{"nvmlDeviceGetName"};
  NvmlCall<NvmlDeviceRef, NvmlPciInfo*> pci{"nvmlDeviceGetPciInfo_v3"};
  NvmlCall<NvmlDeviceRef, unsigned*> state{"nvmlDeviceGetPerformanceState"};
  NvmlCall<NvmlDeviceRef, unsigned*> generation_most{"nvmlDeviceGetMaxPcieLinkGeneration"};
  NvmlCall<NvmlDeviceRef, unsigned*> generation{"nvmlDeviceGetCurrPcieLinkGeneration"};
  NvmlCall<NvmlDeviceRef, NvmlTemperature*> temperature{"nvmlDeviceGetTemperatureV"};
  NvmlCall<NvmlDeviceRef, unsigned, unsigned*> old_temperature{"nvmlDeviceGetTemperature"};
  NvmlCall<NvmlDeviceRef, NvmlUtilization*> utilization{"nvmlDeviceGetUtilizationRates"};
  NvmlCall<NvmlDeviceRef, NvmlMemoryV2*> memory{"nvmlDeviceGetMemoryInfo_v2"};
  NvmlCall<NvmlDeviceRef, NvmlMemory*> old_memory{"nvmlDeviceGetMemoryInfo"};
  NvmlCall<NvmlDeviceRef, unsigned*> power{"nvmlDeviceGetPowerUsage"};
  NvmlCall<NvmlDeviceRef, unsigned long long*> energy{"nvmlDeviceGetTotalEnergyConsumption"};
  NvmlCall<NvmlDeviceRef, unsigned, unsigned*> clock{"nvmlDeviceGetClockInfo"};
  NvmlCall<NvmlDeviceRef, unsigned, unsigned*> most_clock{"nvmlDeviceGetMaxClockInfo"};
  NvmlCall<NvmlDeviceRef, unsigned long long*> reasons{"nvmlDeviceGetCurrentClocksEventReasons"};
  NvmlCall<NvmlDeviceRef, unsigned long long*> old_reasons{"nvmlDeviceGetCurrentClocksThrottleReasons"};
  NvmlCall<NvmlDeviceRef, unsigned, unsigned*> pcie{"nvmlDeviceGetPcieThroughput"};
  NvmlCall<NvmlDeviceRef, int, NvmlFieldValue*> fields{"nvmlDeviceGetFieldValues"};
  NvmlCall<NvmlDeviceRef, NvmlGpmSupport*> gpm_support{"nvmlGpmQueryDeviceSupport"};
  NvmlCall<NvmlGpmSampleRef*> gpm_alloc{"nvmlGpmSampleAlloc"};
  NvmlCall<NvmlGpmSampleRef> gpm_free{"nvmlGpmSampleFree"};
  NvmlCall<NvmlDeviceRef, NvmlGpmSampleRef> gpm_sample{"nvmlGpmSampleGet"};
  NvmlCall<NvmlDeviceRef, unsigned, NvmlGpmSampleRef> gpm_slice_sample{"nvmlGpmMigSampleGet"};
  NvmlCall<NvmlGpmMetrics*> gpm_metrics{"nvmlGpmMetricsGet"};
  NvmlCall<NvmlDeviceRef, unsigned*> virtualization{"nvmlDeviceGetVirtualizationMode"};
};

}  // namespace lockstep
