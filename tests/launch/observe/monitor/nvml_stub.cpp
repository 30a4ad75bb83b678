// SPDX-License-Identifier: Apache-2.0
//
// A replacement of NVIDIA's libnvidia-ml.so.1 for machines without a GPU. It has two devices and a slice of
// the first, and reports the values in the file named by LOCKSTEP_NVML_STUB. Lines are "key value": a value
// of all devices, or with "2.key" of one device; "key!" is the error that a function returns. Without a line
// a function returns "not supported". The offsets of values in NVIDIA's structures are repeated here, as in
// its nvml.h.
//
// With NVML_STUB_OLD it lacks the functions that old drivers lack.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6;

// "1" and "2" are devices, "3" is a slice of the first.
using Device = const char*;
const char kDevices[] = {'\0', '1', '2', '3'};

std::map<std::string, std::string> told() {
  const char* path = std::getenv("LOCKSTEP_NVML_STUB");
  std::ifstream file(path != nullptr ? path : "");
  std::map<std::string, std::string> values;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key, value;
    words >> key >> std::ws;
    std::getline(words, value);
    values[key] = value;
  }
  return values;
}

// The answer for a key, of a device or of none.
struct Answer {
  Answer(Device device, const std::string& key) {
    const auto values = told();
    const std::string own = std::string(1, device != nullptr ? *device : '0') + ".";
    for (const std::string& name : {own + key, key}) {
      if (const auto error = values.find(name + "!"); error != values.end()) {
        result = std::atoi(error->second.c_str());
        return;
      }
      if (const auto value = values.find(name); value != values.end()) {
        result = kSuccess;
        text = value->second;
        return;
      }
    }
  }
  std::uint64_t number() const { return std::strtoull(text.c_str(), nullptr, 0); }
  double real() const { return std::strtod(text.c_str(), nullptr); }

  int result = kNotSupported;
  std::string text;
};

template <typename T>
void put(void* into, std::size_t offset, T value) {
  std::memcpy(static_cast<char*>(into) + offset, &value, sizeof value);
}
template <typename T>
T get(const void* from, std::size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + offset, sizeof value);
  return value;
}

int text_answer(Device device, const char* key, char* into, unsigned length) {
  const Answer answer(device, key);
  if (answer.result == kSuccess) std::strncpy(into, answer.text.c_str(), length);
  return answer.result;
}
int unsigned_answer(Device device, const std::string& key, unsigned* into) {
  const Answer answer(device, key);
  if (answer.result == kSuccess) *into = static_cast<unsigned>(answer.number());
  return answer.result;
}
int long_answer(Device device, const char* key, unsigned long long* into) {
  const Answer answer(device, key);
  if (answer.result == kSuccess) *into = answer.number();
  return answer.result;
}

// Finds the device whose value of the key is `wanted`.
int found(const char* key, const char* wanted, Device* into) {
  for (const char* device = kDevices + 1; device != kDevices + 4; ++device) {
    if (const Answer own(device, key); own.result != kSuccess || own.text != wanted) continue;
    *into = device;
    return kSuccess;
  }
  return kNotFound;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const Answer answer(nullptr, "init");
  return answer.result == kNotSupported ? kSuccess : answer.result;
}
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int result) {
  return result == kNotSupported ? "Not Supported" : "Something Else";
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return text_answer(nullptr, "driver", text, length);
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) { return found("uuid", uuid, device); }
int nvmlDeviceGetName(Device device, char* text, unsigned length) {
  return text_answer(device, "name", text, length);
}
int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned* celsius) {
  return sensor == 0 ? unsigned_answer(device, "temperature", celsius) : 2;
}
int nvmlDeviceGetMemoryInfo(Device device, void* memory) {
  const Answer total(device, "memory.total"), used(device, "memory.used"),
      reserved(device, "memory.reserved");
  if (total.result != kSuccess) return total.result;
  put<std::uint64_t>(memory, 0, total.number());
  put<std::uint64_t>(memory, 8, total.number() - used.number() - reserved.number());
  put<std::uint64_t>(memory, 16, used.number() + reserved.number());
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* reasons) {
  return long_answer(device, "reasons", reasons);
}
int nvmlDeviceGetUtilizationRates(Device device, void* rates) {
  const Answer gpu(device, "utilization.gpu"), memory(device, "utilization.memory");
  if (gpu.result != kSuccess) return gpu.result;
  put<unsigned>(rates, 0, static_cast<unsigned>(gpu.number()));
  put<unsigned>(rates, 4, static_cast<unsigned>(memory.number()));
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
  return unsigned_answer(device, "power", milliwatts);
}

#ifndef NVML_STUB_OLD

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, Device* device) {
  return found("address", address, device);
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (index >= 2) return 2;
  *device = kDevices + 1 + index;
  return kSuccess;
}
int nvmlDeviceGetUUID(Device device, char* text, unsigned length) {
  return text_answer(device, "uuid", text, length);
}
// "processes": their ids, separated by blanks.
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count, void* into) {
  const Answer answer(device, "processes");
  std::istringstream numbers(answer.text);
  const unsigned room = *count;
  *count = 0;
  for (unsigned process = 0; numbers >> process; ++*count) {
    if (*count >= room) continue;
    put<unsigned>(into, std::size_t{24} * *count, process);
  }
  return *count > room ? 7 : answer.result;
}
int nvmlDeviceIsMigDeviceHandle(Device device, unsigned* is_slice) {
  *is_slice = *device == '3' ? 1 : 0;
  return kSuccess;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device* whole) {
  if (*device != '3') return 2;
  *whole = kDevices + 1;
  return kSuccess;
}
int nvmlDeviceGetGpuInstanceId(Device device, unsigned* id) {
  return unsigned_answer(device, "instance", id);
}
int nvmlDeviceGetPciInfo_v3(Device device, void* info) {
  const Answer answer(device, "bus_id");
  if (answer.result == kSuccess) std::strncpy(static_cast<char*>(info) + 36, answer.text.c_str(), 32);
  return answer.result;
}
int nvmlDeviceGetPerformanceState(Device device, unsigned* state) {
  return unsigned_answer(device, "pstate", state);
}
int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned* generation) {
  return unsigned_answer(device, "pcie.max", generation);
}
int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* generation) {
  return unsigned_answer(device, "pcie.current", generation);
}
int nvmlDeviceGetTemperatureV(Device device, void* temperature) {
  if (get<unsigned>(temperature, 0) != 0x100000C || get<unsigned>(temperature, 4) != 0) return 25;
  const Answer answer(device, "temperature");
  if (answer.result == kSuccess) put<int>(temperature, 8, static_cast<int>(answer.number()));
  return answer.result;
}
int nvmlDeviceGetMemoryInfo_v2(Device device, void* memory) {
  if (get<unsigned>(memory, 0) != 0x02000028) return 25;
  const Answer total(device, "memory.total"), used(device, "memory.used"),
      reserved(device, "memory.reserved");
  if (total.result != kSuccess) return total.result;
  put<std::uint64_t>(memory, 8, total.number());
  put<std::uint64_t>(memory, 16, reserved.number());
  put<std::uint64_t>(memory, 24, total.number() - used.number() - reserved.number());
  put<std::uint64_t>(memory, 32, used.number());
  return kSuccess;
}
int nvmlDeviceGetVirtualizationMode(Device device, unsigned* mode) {
  return unsigned_answer(device, "virtualization", mode);
}
int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long* millijoules) {
  return long_answer(device, "energy", millijoules);
}
int nvmlDeviceGetClockInfo(Device device, unsigned clock, unsigned* mhz) {
  return unsigned_answer(device, clock == 1 ? "clock.sm" : clock == 2 ? "clock.memory" : "none", mhz);
}
int nvmlDeviceGetMaxClockInfo(Device device, unsigned clock, unsigned* mhz) {
  return unsigned_answer(device, clock == 1 ? "clock.sm.most" : "none", mhz);
}
int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long* reasons) {
  return long_answer(device, "reasons", reasons);
}
int nvmlDeviceGetPcieThroughput(Device device, unsigned counter, unsigned* kilobytes) {
  return unsigned_answer(device, counter == 0 ? "pcie.sent" : "pcie.received", kilobytes);
}
int nvmlDeviceGetFieldValues(Device device, int count, void* values) {
  for (int i = 0; i < count; ++i) {
    void* field = static_cast<char*>(values) + 40 * i;
    const bool all_links = get<unsigned>(field, 4) == 0xffffffff;
    const Answer answer(device, "field." + std::to_string(get<unsigned>(field, 0)));
    put<unsigned>(field, 24, 3);  // an unsigned long long
    put<int>(field, 28, all_links ? answer.result : 2);
    put<std::uint64_t>(field, 32, answer.number());
  }
  return kSuccess;
}
int nvmlGpmQueryDeviceSupport(Device device, void* support) {
  if (get<unsigned>(support, 0) != 1) return 25;
  put<unsigned>(support, 4, Answer(device, "gpm").result == kSuccess ? 1 : 0);
  return kSuccess;
}
// A sample stores what it was taken of: a device, or an instance of one.
int nvmlGpmSampleAlloc(void** sample) {
  *sample = new int(0);
  return kSuccess;
}
int nvmlGpmSampleFree(void* sample) {
  delete static_cast<int*>(sample);
  return kSuccess;
}
int nvmlGpmSampleGet(Device device, void* sample) {
  put<int>(sample, 0, *device == '3' ? -1 : 100);
  return *device == '3' ? 2 : Answer(device, "gpm").result;
}
int nvmlGpmMigSampleGet(Device device, unsigned instance, void* sample) {
  put<int>(sample, 0, static_cast<int>(instance));
  return *device == '1' ? kSuccess : 2;
}
// The values of an instance: "gpm.2" is a metric of a whole device, "gpm.7.2" of its instance 7.
int nvmlGpmMetricsGet(void* metrics) {
  if (get<unsigned>(metrics, 0) != 1) return 25;
  const int first = *get<int*>(metrics, 8), second = *get<int*>(metrics, 16);
  if (first != second || first == 0) return 2;
  const std::string whose = second == 100 ? "gpm." : "gpm." + std::to_string(second) + ".";
  for (unsigned i = 0; i < get<unsigned>(metrics, 4); ++i) {
    void* metric = static_cast<char*>(metrics) + 24 + 40 * i;
    const Answer answer(nullptr, whose + std::to_string(get<unsigned>(metric, 0)));
    put<int>(metric, 4, answer.result);
    put<double>(metric, 8, answer.real());
  }
  return kSuccess;
}

#endif

}  // extern "C"
