// SPDX-License-Identifier: Apache-2.0
//
// Divides the cores of a node among its ranks. A launcher may bind each rank to separate cores (Slurm,
// mpirun), bind all ranks to the same cores (a container, taskset), or bind none. Control groups may give a
// node's ranks less time than its cores have.
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
#include "core/system/processor_quota.h"

namespace lockstep {

// Cores of the system, including those that this process may not use.
int machine_cores();
// Cores that this process may use, limited by the CPU quota of its control groups; at least 1.
int usable_cores();

// Where a rank runs.
struct RankCores {
  std::int32_t node = 0;
  std::int32_t machine_cores = 1;  // of the system
  cpu_set_t usable = {};           // that this process may use
  // CPU quotas of its control groups. Unused entries have 0 cores.
  std::array<ProcessorQuota, 4> quotas = {};
};

// Returns the compute threads of each rank: `wanted` for every rank if it is positive. Otherwise each core
// counts for a rank as 1 / (number of ranks that may use it), and no rank exceeds its share of a CPU quota;
// at least 1.
std::vector<int> divide_cores(std::span<const RankCores> ranks, std::int64_t wanted);

// Describes too few cores or too little CPU quota for these threads: the first affected node, and the number
// of further ones. Empty if all ranks have enough.
std::string describe_contention(std::span<const RankCores> ranks, std::span<const int> threads);

struct ThreadChoice {
  int threads = 1;     // compute threads of this rank
  int cores = 1;       // this rank's share of the cores, whatever `wanted` is
  int node_cores = 1;  // that the ranks of its node may use, limited by their CPU quota
};
// Collective. wanted: train.threads; 0 or less: the rank's share of the cores. Rank 0 warns about contention,
// and logs when a CPU quota decides.
ThreadChoice choose_threads(std::int64_t wanted, const World& world, Communicator& host);

// Binds the calling thread, and the threads that it starts later, to those near processors that it may use.
// Returns their number; 0 if it may use none of them, and then changes nothing.
int keep_near(const cpu_set_t& near);

// Binds to the processors near the device of this rank, if the system reports them. Warns if this rank may
// use none of them.
void keep_near(Device device);

// Sets the nice value of the stream's worker thread. 0 changes nothing. Ignores a refusal by the system: only
// root may lower a nice value.
void set_niceness(Stream& stream, std::int64_t niceness);

}  // namespace lockstep
