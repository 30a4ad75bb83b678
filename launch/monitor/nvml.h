// SPDX-License-Identifier: Apache-2.0
//
// Nvml: what NVIDIA's management library tells of a GPU. It is not linked: it comes with the driver, is
// looked for when the program runs, and any function that this version of it lacks is done without. Nothing
// here throws for what it says: what it refuses is left out of the figures, and told beside them. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// Of one device, or of a slice of it (MIG), at one moment. What is not known is left out.
struct DeviceFigures {
  std::string name, pci_bus_id, driver_version;  // as nvidia-smi writes them; empty: not known
  bool slice = false;  // then memory and activity are its own, and all else that of the whole device
  std::optional<unsigned> performance_state;  // 0 (most) to 15
  std::optional<unsigned> pcie_generation_most, pcie_generation;
  std::optional<double> celsius;
  // Per cent of time in which some kernel ran, or memory was read or written. Not told of slices.
  std::optional<double> utilization, memory_utilization;
  std::optional<std::uint64_t> memory_bytes, memory_free_bytes, memory_used_bytes;
  std::optional<double> watts;
  std::optional<double> joules;  // since the driver was loaded
  std::optional<unsigned> sm_mhz, memory_mhz, sm_mhz_most;
  std::optional<std::uint64_t> clock_reasons;                                    // see clock_reason_words()
  std::optional<double> pcie_received, pcie_sent, nvlink_received, nvlink_sent;  // bytes per second
  // Per cent, between the sample before and this one, by a device's own counters (Hopper and later): of
  // multiprocessors that were busy, of their tensor cores, and of the memory's bytes per second.
  std::optional<double> sm_activity, tensor_activity, memory_activity;
  std::vector<std::string> refused;  // "nvmlDeviceGetPowerUsage: Not Supported"
};

// Why clocks are lower than they could be, as nvidia-smi calls it: "sw_power_cap"; bits that have no name are
// written as such ("0x800").
std::vector<std::string> clock_reason_words(std::uint64_t reasons);
inline constexpr std::uint64_t kClocksOfIdleDevice = 1;  // of these bits: nothing ran, which slows nothing

// That a process uses a GPU: at the least, it has a context there, which takes some hundred MiB.
struct DeviceContext {
  std::string uuid, pci_bus_id;  // of the whole GPU
  std::int64_t process = 0;
  std::optional<std::uint64_t> memory_bytes;  // of the GPU, that it takes
  std::optional<double> utilization;          // of the GPU, by whomever
};

class Nvml {
 public:
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";

  // What the dynamic linker finds by that name, or path. Never throws: see problem().
  explicit Nvml(const std::string& library = kLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const char* provider() const { return calls_ ? "nvml" : "none"; }
  const std::string& problem() const { return problem_; }  // why there is none; empty: there is one
  // Of all GPUs of this machine. Processes are numbered as this one sees them, if the driver knows how;
  // empty where it does not tell.
  std::vector<DeviceContext> contexts() const;

 private:
  friend class NvmlDevice;
  struct Calls;
  std::unique_ptr<Calls> calls_;
  std::string problem_;
};

// A device of it, which outlives this.
class NvmlDevice {
 public:
  // By its UUID ("GPU-...", "MIG-..."), or else by its PCI address.
  NvmlDevice(const Nvml& nvml, const std::string& uuid, const std::string& pci_address);
  ~NvmlDevice();
  NvmlDevice(const NvmlDevice&) = delete;
  NvmlDevice& operator=(const NvmlDevice&) = delete;

  // Asks for all there is. Takes milliseconds; tens of them where the driver itself watches PCIe for a while.
  DeviceFigures sample();
  // Of all that, memory and utilization alone, which takes no time.
  DeviceFigures sample_use();
  // Whether it is a part of a GPU, given to this virtual machine; false where that is not told.
  bool is_vgpu();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
