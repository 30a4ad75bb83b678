// SPDX-License-Identifier: Apache-2.0
//
// HostLoad: how busy this machine is, as Linux tells in /proc and /sys. What it does not tell, or not to this
// user, is left out. One thread.
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
  // Since the sample before, or the making; per cent of all its cores.
  std::optional<double> processor;
  std::optional<double> job_processor;  // what this job's processes took of that
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> network_received, network_sent;  // bytes per second; the loopback is none
  std::optional<double> joules;                          // of all processor packages, since the making
};

class HostLoad {
 public:
  // processes: this job's on this machine. root: of the files.
  explicit HostLoad(std::vector<pid_t> processes = {}, std::filesystem::path root = "/");

  HostFigures sample();

 private:
  using Clock = std::chrono::steady_clock;
  struct Ticks {  // of all cores, by the kernel's clock
    std::uint64_t busy = 0, all = 0;
  };
  struct Traffic {
    std::uint64_t received = 0, sent = 0;
  };

  std::optional<Ticks> read_ticks() const;
  std::optional<std::uint64_t> read_job_ticks() const;
  std::optional<Traffic> read_traffic() const;
  void read_memory(HostFigures& figures) const;
  std::optional<double> read_joules();

  struct Package {
    std::uint64_t microjoules = 0, range = 0;  // after which it begins at 0 again
  };

  std::vector<pid_t> processes_;
  std::filesystem::path root_;
  std::map<std::filesystem::path, Package> packages_;
  double joules_ = 0;
  // Of the sample before.
  Clock::time_point taken_;
  std::optional<Ticks> ticks_;
  std::optional<std::uint64_t> job_ticks_;
  std::optional<Traffic> traffic_;
};

}  // namespace lockstep
