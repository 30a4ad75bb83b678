// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/nvml.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "core/text/units.h"
#include "launch/observe/monitor/nvml_calls.h"

namespace lockstep {
namespace {

// Indices into kGpmMetrics.
enum GpmPlace {
  kGpmSm,
  kGpmTensor,
  kGpmDram,
  kGpmPcieSent,
  kGpmPcieReceived,
  kGpmNvlinkReceived,
  kGpmNvlinkSent
};
constexpr std::array<unsigned, 7> kGpmMetrics = {2, 5, 10, 20, 21, 60, 61};
// Closer samples give no metrics.
constexpr std::chrono::milliseconds kGpmLeastInterval{101};

double number_of(const NvmlFieldValue& field) {
  switch (field.type) {
    case 0:
      return field.value.as_double;
    case 1:
      return field.value.as_unsigned;
    case 2:
      return static_cast<double>(field.value.as_unsigned_long);
    case 3:
      return static_cast<double>(field.value.as_unsigned_long_long);
    case 4:
      return static_cast<double>(field.value.as_long_long);
    case 5:
      return field.value.as_int;
    case 6:
      return field.value.as_unsigned_short;
    default:
      return std::nan("");
  }
}

// Empty for an impossible value.
std::optional<double> percent_of(double value) {
  return value >= 0 && value <= 100 ? std::optional(value) : std::nullopt;
}
std::optional<double> rate_of(double value) {
  return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

// Calls a function that returns the figure through its last argument. Empty if the call fails.
template <typename T, typename... Parameters, typename... Arguments>
std::optional<T> nvml_figure(const NvmlCall<Parameters...>& call, Arguments... arguments) {
  T value = {};
  return call(arguments..., &value) ? std::optional(value) : std::nullopt;
}

}  // namespace

std::vector<std::string> clock_reason_words(std::uint64_t reasons) {
  constexpr std::array<std::string_view, 11> kWords = {"gpu_idle",
                                                       "applications_clocks_setting",
                                                       "sw_power_cap",
                                                       "hw_slowdown",
                                                       "sync_boost",
                                                       "sw_thermal_slowdown",
                                                       "hw_thermal_slowdown",
                                                       "hw_power_brake_slowdown",
                                                       "display_clock_setting",
                                                       "board_limit",
                                                       "reliability"};
  std::vector<std::string> words;
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t mask = std::uint64_t{1} << bit;
    if ((reasons & mask) == 0) continue;
    words.push_back(bit < kWords.size() ? std::string(kWords[bit]) : fmt::format("{:#x}", mask));
  }
  return words;
}

Nvml::Nvml(const std::string& library) {
  auto calls = std::make_unique<Calls>();
  calls->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (calls->library == nullptr) {
    const char* why = dlerror();
    problem_ = why != nullptr ? why : "cannot load " + library;
    return;
  }
  Calls& c = *calls;
  c.error_string = reinterpret_cast<const char* (*)(NvmlResult)>(dlsym(c.library, "nvmlErrorString"));
  c.find(c.init);
  if (c.init.function == nullptr) {
    problem_ = fmt::format("{} lacks the function {}", library, c.init.name);
    return;
  }
  if (const NvmlResult result = c.init.function(); result != kNvmlSuccess) {
    problem_ = fmt::format("{}: {}", c.init.name, c.text_of(result));
    return;
  }
  c.find_all(c.shutdown, c.driver_version, c.by_uuid, c.by_pci, c.count, c.by_index, c.uuid, c.processes,
             c.is_slice, c.whole, c.instance, c.name, c.pci, c.state, c.generation_most, c.generation,
             c.temperature, c.old_temperature, c.utilization, c.memory, c.old_memory, c.power, c.energy,
             c.clock, c.most_clock, c.reasons, c.old_reasons, c.pcie, c.fields, c.gpm_support, c.gpm_alloc,
             c.gpm_free, c.gpm_sample, c.gpm_slice_sample, c.gpm_metrics, c.virtualization);
  calls_ = std::move(calls);
}

Nvml::~Nvml() = default;

struct NvmlDevice::State {
  using Clock = std::chrono::steady_clock;

  explicit State(const Nvml::Calls& library) : calls(library) {}
  ~State() {
    for (const NvmlGpmSampleRef each : gpm_samples)
      if (each != nullptr) calls.gpm_free.function(each);
  }

  void find(const std::string& uuid, const std::string& pci_address);
  void prepare_gpm();
  void read_memory(DeviceFigures& figures);
  void read_utilization(DeviceFigures& figures);
  void read_temperature(DeviceFigures& figures);
  void read_power(DeviceFigures& figures);
  void read_gpm(DeviceFigures& figures);
  void read_links(DeviceFigures& figures);
  bool take_gpm_sample(NvmlGpmSampleRef sample) const {
    return slice ? calls.gpm_slice_sample(whole, instance, sample) : calls.gpm_sample(whole, sample);
  }

  const Nvml::Calls& calls;
  NvmlDeviceRef device = nullptr;  // null: not found
  NvmlDeviceRef whole = nullptr;   // the device of a slice; else equal to device
  bool slice = false;
  unsigned instance = 0;  // GPU instance of the slice
  std::string name, pci_bus_id, driver_version;

  bool gpm = false;
  std::array<NvmlGpmSampleRef, 2> gpm_samples = {};  // the previous one, and the next
  std::optional<Clock::time_point> gpm_taken;        // time of the previous one
  int gpm_rounds = 0;
  std::unique_ptr<NvmlGpmMetrics> gpm_answer;

  std::optional<Clock::time_point> links_read;
  double nvlink_sent = 0, nvlink_received = 0;  // KiB, at links_read
};

void NvmlDevice::State::find(const std::string& uuid, const std::string& pci_address) {
  bool found = !uuid.empty() && calls.by_uuid(uuid.c_str(), &device);
  if (!found && !pci_address.empty()) found = calls.by_pci(pci_address.c_str(), &device);
  if (!found) device = nullptr;
  if (device == nullptr) return;

  whole = device;
  if (nvml_figure<unsigned>(calls.is_slice, device).value_or(0) != 0) {
    slice = true;
    if (!calls.whole(device, &whole)) whole = nullptr;
    instance = nvml_figure<unsigned>(calls.instance, device).value_or(0);
  }
  std::array<char, 96> text = {};
  const auto length = static_cast<unsigned>(text.size() - 1);
  if (calls.name(device, text.data(), length)) name = text.data();
  text = {};
  if (calls.driver_version(text.data(), length)) driver_version = text.data();
  if (whole == nullptr) return;
  NvmlPciInfo info = {};
  if (calls.pci(whole, &info)) pci_bus_id = bus_id_of(info);
  prepare_gpm();
}

void NvmlDevice::State::prepare_gpm() {
  NvmlGpmSupport support = {.version = kNvmlGpmVersion, .supported = 0};
  if (!calls.gpm_support(whole, &support) || support.supported == 0) return;
  if (calls.gpm_free.function == nullptr) return;
  for (NvmlGpmSampleRef& each : gpm_samples) {
    if (!calls.gpm_alloc(&each)) {
      each = nullptr;
      return;
    }
  }
  gpm_answer = std::make_unique<NvmlGpmMetrics>();
  gpm = true;
}

// Version 2 excludes the driver's reserved memory from the used memory, as nvidia-smi does.
void NvmlDevice::State::read_memory(DeviceFigures& figures) {
  const auto read = [&](const auto& memory) {
    figures.memory_bytes = memory.total;
    figures.memory_free_bytes = memory.free;
    figures.memory_used_bytes = memory.used;
  };
  NvmlMemoryV2 memory = {.version = kNvmlMemoryV2};
  NvmlMemory old = {};
  if (calls.memory(device, &memory)) return read(memory);
  if (calls.old_memory(device, &old)) read(old);
}

void NvmlDevice::State::read_utilization(DeviceFigures& figures) {
  NvmlUtilization utilization = {};
  if (slice || !calls.utilization(whole, &utilization)) return;
  figures.utilization = percent_of(utilization.gpu);
  figures.memory_utilization = percent_of(utilization.memory);
}

void NvmlDevice::State::read_temperature(DeviceFigures& figures) {
  NvmlTemperature temperature = {.version = kNvmlTemperatureV1, .sensor = kNvmlTemperatureOfGpu};
  if (calls.temperature(whole, &temperature)) {
    figures.celsius = temperature.celsius;
  } else if (const auto old = nvml_figure<unsigned>(calls.old_temperature, whole, kNvmlTemperatureOfGpu)) {
    figures.celsius = *old;
  }
}

void NvmlDevice::State::read_power(DeviceFigures& figures) {
  if (const auto milliwatts = nvml_figure<unsigned>(calls.power, whole)) figures.watts = *milliwatts / 1e3;
  if (const auto millijoules = nvml_figure<unsigned long long>(calls.energy, whole))
    figures.joules = static_cast<double>(*millijoules) / 1e3;
  figures.sm_mhz = nvml_figure<unsigned>(calls.clock, whole, kNvmlClockSm);
  figures.sm_mhz_most = nvml_figure<unsigned>(calls.most_clock, whole, kNvmlClockSm);
  figures.memory_mhz = nvml_figure<unsigned>(calls.clock, whole, kNvmlClockMemory);
  auto reasons = nvml_figure<unsigned long long>(calls.reasons, whole);
  if (!reasons) reasons = nvml_figure<unsigned long long>(calls.old_reasons, whole);
  if (reasons) figures.clock_reasons = *reasons;
}

void NvmlDevice::State::read_gpm(DeviceFigures& figures) {
  ++gpm_rounds;
  const Clock::time_point now = Clock::now();
  if (gpm_taken && now - *gpm_taken < kGpmLeastInterval) return;
  if (!take_gpm_sample(gpm_samples[1])) return;
  const bool two = gpm_taken.has_value();
  gpm_taken = now;
  std::swap(gpm_samples[0], gpm_samples[1]);
  if (!two) return;
  *gpm_answer = {.version = kNvmlGpmVersion,
                 .count = static_cast<unsigned>(kGpmMetrics.size()),
                 .first = gpm_samples[1],
                 .second = gpm_samples[0]};
  for (std::size_t i = 0; i < kGpmMetrics.size(); ++i) gpm_answer->metrics[i].id = kGpmMetrics[i];
  if (!calls.gpm_metrics(gpm_answer.get())) return;
  // NaN if the device lacks the metric.
  const auto value = [&](GpmPlace place) {
    const NvmlGpmMetric& metric = gpm_answer->metrics[static_cast<std::size_t>(place)];
    return metric.result == kNvmlSuccess ? metric.value : std::nan("");
  };
  figures.sm_activity = percent_of(value(kGpmSm));
  figures.tensor_activity = percent_of(value(kGpmTensor));
  figures.memory_activity = percent_of(value(kGpmDram));
  figures.pcie_sent = rate_of(value(kGpmPcieSent) * kMiB);
  figures.pcie_received = rate_of(value(kGpmPcieReceived) * kMiB);
  figures.nvlink_received = rate_of(value(kGpmNvlinkReceived) * kMiB);
  figures.nvlink_sent = rate_of(value(kGpmNvlinkSent) * kMiB);
}

// Link rates that GPM does not provide. The driver samples PCIe for 20 ms per direction.
void NvmlDevice::State::read_links(DeviceFigures& figures) {
  if (slice) return;  // the rates are those of the whole device, which other processes share
  const bool waits_for_gpm = gpm && gpm_rounds < 2;
  if (!figures.pcie_sent && !waits_for_gpm) {
    if (const auto sent = nvml_figure<unsigned>(calls.pcie, whole, kNvmlPcieSent))
      figures.pcie_sent = *sent * 1e3;
    if (const auto received = nvml_figure<unsigned>(calls.pcie, whole, kNvmlPcieReceived))
      figures.pcie_received = *received * 1e3;
  }
  if (figures.nvlink_sent) return;
  std::array<NvmlFieldValue, 2> values = {};
  values[0].field = kNvmlFieldNvlinkSent;
  values[1].field = kNvmlFieldNvlinkReceived;
  for (NvmlFieldValue& each : values) each.scope = kNvmlAllLinks;
  const Clock::time_point now = Clock::now();
  if (!calls.fields(whole, static_cast<int>(values.size()), values.data())) return;
  for (const NvmlFieldValue& each : values)
    if (each.result != kNvmlSuccess) return;
  const double sent = number_of(values[0]), received = number_of(values[1]);
  if (links_read) {
    const double seconds = std::chrono::duration<double>(now - *links_read).count();
    figures.nvlink_sent = rate_of((sent - nvlink_sent) * 1024 / seconds);
    figures.nvlink_received = rate_of((received - nvlink_received) * 1024 / seconds);
  }
  links_read = now;
  nvlink_sent = sent;
  nvlink_received = received;
}

NvmlDevice::NvmlDevice(const Nvml& nvml, const std::string& uuid, const std::string& pci_address) {
  if (!nvml.calls_) return;
  state_ = std::make_unique<State>(*nvml.calls_);
  state_->find(uuid, pci_address);
}

NvmlDevice::~NvmlDevice() = default;

DeviceFigures NvmlDevice::sample() {
  DeviceFigures figures;
  if (!state_) return figures;
  State& s = *state_;
  figures.name = s.name;
  figures.pci_bus_id = s.pci_bus_id;
  figures.driver_version = s.driver_version;
  figures.slice = s.slice;
  if (s.device != nullptr) s.read_memory(figures);
  if (s.whole != nullptr) {
    figures.performance_state = nvml_figure<unsigned>(s.calls.state, s.whole);
    if (figures.performance_state >= kNvmlStates) figures.performance_state.reset();  // "unknown"
    figures.pcie_generation_most = nvml_figure<unsigned>(s.calls.generation_most, s.whole);
    figures.pcie_generation = nvml_figure<unsigned>(s.calls.generation, s.whole);
    s.read_temperature(figures);
    s.read_utilization(figures);
    s.read_power(figures);
    if (s.gpm) s.read_gpm(figures);
    s.read_links(figures);
  }
  return figures;
}

DeviceFigures NvmlDevice::sample_use() {
  DeviceFigures figures;
  if (!state_) return figures;
  if (state_->device != nullptr) state_->read_memory(figures);
  if (state_->whole != nullptr) state_->read_utilization(figures);
  return figures;
}

bool NvmlDevice::is_vgpu() {
  if (!state_ || state_->whole == nullptr) return false;
  return nvml_figure<unsigned>(state_->calls.virtualization, state_->whole) == kNvmlVirtualGpu;
}

}  // namespace lockstep
