// SPDX-License-Identifier: Apache-2.0
//
// How the cores of a node are divided among its ranks. A launcher may bind ranks to cores of their own
// (Slurm, mpirun), bind all of them to the same ones (a container, taskset), or to none. Control groups may
// give a node's ranks less time than its cores have.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sched.h>

#include "comm/communicator.h"
#include "comm/world.h"
#include "core/device.h"
#include "launch/devices/processor_quota.h"

namespace lockstep {

// That the system has, whatever this process may use.
int machine_cores();
// That this process may use, and has the time of by its control group's CPU quota; at least 1.
int usable_cores();

// Where a rank runs.
struct RankCores {
  std::int32_t node = 0;
  std::int32_t machine_cores = 1;  // that the system has
  cpu_set_t usable = {};           // that this process may use
  // CPU quotas of its control groups. Those that are not used have 0 cores.
  std::array<ProcessorQuota, 4> quotas = {};
};

// Compute threads of each rank: `wanted` of all of them where it is positive. Otherwise a core counts for a
// rank as one over the number of ranks that may use it, and no rank has more than its share of a CPU quota;
// at least 1.
std::vector<int> divide_cores(std::span<const RankCores> ranks, std::int64_t wanted);

// What a person should know of these threads on these cores: of the first node where there is something, and
// how many more there are; empty where all have what they need.
std::string describe_contention(std::span<const RankCores> ranks, std::span<const int> threads);

struct ThreadChoice {
  int threads = 1;     // that this rank computes with
  int node_cores = 1;  // that the ranks of its node may use, each of them some, and have the time of
};
// Collective. Threads are train.threads, or the rank's share of the cores. Rank 0 warns, and says where a CPU
// quota decides.
ThreadChoice choose_threads(std::int64_t wanted, const World& world, Communicator& host);

// The calling thread, and those that it starts from now on, keep to those processors that are near, among
// those that they may use. How many these are; 0 where none is near: then all stay as they are.
int keep_near(const cpu_set_t& near);

// The same for the processors that are near this rank's device, as far as the system tells. Warns where none
// of those that it may use is.
void keep_near(Device device);

// The nice value of the thread that does a stream's work from now on, which is a worker of its own. 0 leaves
// it as it is, and so does a system that refuses: a lower one than the process's is root's to give.
void set_niceness(Stream& stream, std::int64_t niceness);

}  // namespace lockstep
