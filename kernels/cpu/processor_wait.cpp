// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/processor_wait.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

namespace lockstep {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Seconds = std::map<std::string, double>;

// Time that each thread was ready to run and waited in a run queue: the second number of schedstat, in
// nanoseconds.
void add_queued(Seconds& waited) {
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(thread.path() / "schedstat");
    double ran = 0, queued = 0;
    if (file >> ran >> queued) waited["thread " + thread.path().filename().string()] = queued * 1e-9;
  }
}

// Time that the hypervisor took from each processor that this process may use: "cpu3 user nice system idle
// iowait irq softirq steal ..", in ticks.
void add_stolen(Seconds& waited) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return;
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ifstream file("/proc/stat");
  for (std::string name; file >> name && name.starts_with("cpu"); file.ignore(4096, '\n')) {
    if (name == "cpu" || !CPU_ISSET(std::stoi(name.substr(3)), &usable)) continue;
    double ticks = 0;
    for (int column = 0; column < 8; ++column) file >> ticks;
    if (file) waited[name] = ticks / ticks_per_second;
  }
}

Seconds waited_seconds() {
  Seconds waited;
  add_queued(waited);
  add_stolen(waited);
  return waited;
}

}  // namespace

ProcessorWait::ProcessorWait() : begin_(now()), waited_(waited_seconds()) {}

double ProcessorWait::fraction() const {
  const double since = now() - begin_;
  double most = 0;
  for (const auto& [who, seconds] : waited_seconds()) {
    const auto before = waited_.find(who);
    most = std::max(most, seconds - (before == waited_.end() ? 0 : before->second));
  }
  return since > 0 ? std::min(most / since, 1.0) : 0;
}

}  // namespace lockstep
