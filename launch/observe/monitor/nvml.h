// SPDX-License-Identifier: Apache-2.0
//
// Nvml: figures of a GPU from NVIDIA's management library. The library comes with the driver and is loaded at
// run time; functions that the installed version lacks are skipped. Nothing here throws for an NVML error:
// the figure stays empty. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// A sample of one device or MIG slice. Unknown values are empty.
struct DeviceFigures {
  std::string name, pci_bus_id, driver_version;  // in nvidia-smi's format; empty: unknown
  bool slice = false;  // if true, memory and activity are the slice's, all else the whole device's
  std::optional<unsigned> performance_state;  // 0 (highest) to 15
  std::optional<unsigned> pcie_generation_most, pcie_generation;
  std::optional<double> celsius;
  // Per cent of time in which any kernel ran, or memory was read or written. Empty for slices.
  std::optional<double> utilization, memory_utilization;
  std::optional<std::uint64_t> memory_bytes, memory_free_bytes, memory_used_bytes;
  std::optional<double> watts;
  std::optional<double> joules;  // since the driver was loaded
  std::optional<unsigned> sm_mhz, memory_mhz, sm_mhz_most;
  std::optional<std::uint64_t> clock_reasons;                                    // see clock_reason_words()
  std::optional<double> pcie_received, pcie_sent, nvlink_received, nvlink_sent;  // bytes per second
  // Per cent, between the previous sample and this one, by device counters (Hopper and later): busy
  // multiprocessors, busy tensor cores, and memory bandwidth.
  std::optional<double> sm_activity, tensor_activity, memory_activity;
};

// Reasons for reduced clocks in nvidia-smi's words: "sw_power_cap"; bits without a name in hexadecimal
// ("0x800").
std::vector<std::string> clock_reason_words(std::uint64_t reasons);
inline constexpr std::uint64_t kClocksOfIdleDevice = 1;  // bit for an idle GPU, which slows nothing

// A process's use of a GPU: at least a context, which takes some hundred MiB.
struct DeviceContext {
  std::string uuid, pci_bus_id;  // those of the whole GPU
  std::int64_t process = 0;
  std::optional<double> utilization;  // the GPU's, by all processes
};

class Nvml {
 public:
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";

  // library: a name or path for the dynamic linker. Never throws: see problem().
  explicit Nvml(const std::string& library = kLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::string& problem() const { return problem_; }  // why the library is unavailable; empty: available
  // Contexts on all GPUs of this machine. Process numbers are those of this process's namespace if the driver
  // supports that. Empty if the driver does not report them.
  std::vector<DeviceContext> contexts() const;

 private:
  friend class NvmlDevice;
  struct Calls;
  std::unique_ptr<Calls> calls_;
  std::string problem_;
};

// A device of an Nvml, which must outlive this.
class NvmlDevice {
 public:
  // Finds the device by its UUID ("GPU-...", "MIG-..."), or else by its PCI address.
  NvmlDevice(const Nvml& nvml, const std::string& uuid, const std::string& pci_address);
  ~NvmlDevice();
  NvmlDevice(const NvmlDevice&) = delete;
  NvmlDevice& operator=(const NvmlDevice&) = delete;

  // Reads all figures. Takes milliseconds; tens of them if the driver itself samples PCIe.
  DeviceFigures sample();
  // Reads memory and utilization only, which is fast.
  DeviceFigures sample_use();
  // True for a vGPU, a part of a GPU assigned to this virtual machine; false if unknown.
  bool is_vgpu();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
