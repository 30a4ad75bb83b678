// SPDX-License-Identifier: Apache-2.0
//
// HostLoad: the load of this machine from Linux's /proc and /sys. Values that are missing, or that this user
// may not read, are left empty. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep {

struct HostFigures {
  // Since the previous sample, and empty in the first one; per cent of all cores.
  std::optional<double> processor;
  std::optional<double> job_processor;  // the part of this job's processes
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  // Bytes per second since the previous sample, each byte once, without the loopback and RDMA; empty in the
  // first one.
  std::optional<double> network_received, network_sent;
  std::optional<double> joules;  // all processor packages, since construction
};

class HostLoad {
 public:
  // processes: those of this job on this machine. root: root folder of the file system.
  explicit HostLoad(std::vector<pid_t> processes, std::filesystem::path root = "/");

  HostFigures sample();
  // HostFigures::joules. Its counters wrap, some within a minute: without a call or a sample every
  // kEnergyInterval, the energy may be too low.
  std::optional<double> read_joules();
  static constexpr std::chrono::seconds kEnergyInterval{30};

 private:
  using Clock = std::chrono::steady_clock;
  struct Ticks {  // summed over all cores, in the kernel's clock ticks
    std::uint64_t busy = 0, all = 0;
  };
  struct Traffic {
    std::uint64_t received = 0, sent = 0;
  };
  using Interfaces = std::map<std::string, Traffic>;  // by name

  std::optional<Ticks> read_ticks() const;
  std::optional<std::uint64_t> read_job_ticks() const;
  Interfaces read_interfaces() const;
  // The sum over the interfaces that both have. Empty if there is none, or if the counters of one decreased:
  // it was reset.
  static std::optional<Traffic> traffic_between(const Interfaces& before, const Interfaces& after);
  void read_memory(HostFigures& figures) const;

  struct Package {
    std::uint64_t microjoules = 0, range = 0;  // the counter wraps to 0 after it
  };

  std::vector<pid_t> processes_;
  std::filesystem::path root_;
  std::map<std::filesystem::path, Package> packages_;
  double joules_ = 0;
  // Values of the previous sample.
  Clock::time_point taken_;
  std::optional<Ticks> ticks_;
  std::optional<std::uint64_t> job_ticks_;
  Interfaces interfaces_;
};

}  // namespace lockstep
