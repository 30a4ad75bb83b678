// SPDX-License-Identifier: Apache-2.0
//
// Which device each rank computes on. Every rank sees only its own node's devices, and perhaps only some of
// them; all ranks tell each other what they see and deal the devices alike. Jobs that share a node keep
// apart: what a rank takes it claims for its job (comm/node_claims.h), and what others have claimed is not
// dealt.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/world.h"

namespace lockstep {

struct RankDevices {
  std::int32_t node = 0;
  std::string host;
  std::vector<std::string> uuids;                 // of the CUDA devices it sees, in their order
  std::set<std::string> own = {};                 // of these, what this rank has claimed already
  std::map<std::string, std::string> taken = {};  // of these, what other processes have claimed, and who
  std::map<std::string, int> use = {};            // how much they are used (device_use.h); 0 where not told
};

// What some rank of the job has is taken from nobody of it.
void keep_to_other_jobs(std::span<RankDevices> ranks);

enum class DeviceSharing { refused, allowed };

// For each rank the index of its device among those it sees, or -1 where none is left for it. A rank that has
// one keeps it. Of the others those of a node take turns; each takes, of those that nobody has yet, the first
// it sees of the least used. So where all see the same and no use is told local rank i gets device i, and
// index 0 where a launcher, or MIG, shows each rank a device of its own. With DeviceSharing::allowed a rank
// takes the first of those that the fewest have, and looks at no other job.
std::vector<int> deal_devices(std::span<const RankDevices> ranks, DeviceSharing sharing);

// The ranks of the first node on which somebody has no device, as lines: rank, local rank, device or none.
std::string device_table(std::span<const RankDevices> ranks, std::span<const int> dealt);

// What other jobs have of what that node's ranks see, and who, as lines; empty: nothing.
std::string taken_table(std::span<const RankDevices> ranks, std::span<const int> dealt);

// The devices that some rank of their node sees and nobody takes, of other jobs neither: "4 of 8 on node7, 4
// of 8 on node8"; empty: none.
std::string unused_devices(std::span<const RankDevices> ranks, std::span<const int> dealt);

// Whether two ranks have the same device, or MIG slices of what may be the same: NCCL takes both for
// mistakes.
bool devices_are_shared(std::span<const RankDevices> ranks, std::span<const int> dealt);

// As a person gives it.
struct DeviceSettings {
  std::string device = "auto";  // auto, cpu, cuda, idle
  bool share_device = false;    // several ranks on one GPU, for correctness only
  bool near_cores = true;       // a rank keeps to the cores that its GPU hangs on (launch/devices/cores.h)
};

// The job that has a GPU or slice of this node, if it is none of this process.
std::optional<std::string> holder_of_gpu(const NodeClaims& claims, const std::string& uuid);

// What CUDA tells of a GPU; nothing of the CPU.
std::optional<CudaDevice> known_gpu(Device device);

struct DeviceChoice {
  Device device;
  bool shared = false;      // devices_are_shared, and that is meant
  std::string unused = {};  // see unused_devices()
};

// Collective over the host communicator. What world.device asks for, or with "auto" a GPU where the build and
// the machines have one for every rank that no other job has, else the CPU. Claims it until this process
// ends, or chooses anew. Throws agreed ConfigErrors.
DeviceChoice choose_device(const DeviceSettings& settings, World& world, Communicator& host);

}  // namespace lockstep
