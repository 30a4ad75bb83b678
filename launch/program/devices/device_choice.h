// SPDX-License-Identifier: Apache-2.0
//
// Chooses the device of each rank. A rank sees only devices of its node, and possibly only some of them.
// All ranks exchange what they see and compute the same assignment. Jobs that share a node avoid each other:
// a rank claims its device for its job (comm/job/node_claims.h), and devices claimed by other jobs are not
// assigned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
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
  std::vector<std::string> uuids;  // of the visible CUDA devices, in CUDA's order; unusable: ""
  std::set<std::string> own = {};  // of these, those that this rank has claimed
  std::map<std::string, std::string> taken = {};  // of these, holders in other processes
  std::map<std::string, int> use = {};            // result of use_of_devices(); absent: 0
};

// Removes devices claimed by any rank of this job from every rank's `taken`.
void keep_to_other_jobs(std::span<RankDevices> ranks);

enum class DeviceSharing { refused, allowed };

// Returns for each rank the index of its device in its uuids, or -1 if none is left. A rank keeps a device
// that it has claimed. The other ranks of a node choose in rank order: each takes the first device with the
// lowest use among those that no rank and no other job has. So local rank i gets device i if all ranks see
// the same devices and use is unknown, and index 0 if a launcher, or MIG, shows each rank a separate device.
// If a rank is then left without a device, peers that see others change theirs, also claimed ones if there is
// no other way, so that as many ranks as possible have one. Unusable devices are not assigned.
// With DeviceSharing::allowed a rank takes the first device with the fewest ranks (then the lowest use), and
// claims of other jobs are ignored.
std::vector<int> deal_devices(std::span<const RankDevices> ranks, DeviceSharing sharing);

// The ranks of the first node with a rank that has no device, one line each: rank, local rank, device or
// none. Empty if every rank has one.
std::string device_table(std::span<const RankDevices> ranks, std::span<const int> dealt);

// The devices of that node that other jobs have claimed, and their holders, one line each; empty: none.
std::string taken_table(std::span<const RankDevices> ranks, std::span<const int> dealt);

// Counts the usable devices that a rank sees but no rank and no other job uses: "4 of 8 on node7, 4 of 8 on
// node8"; empty: none.
std::string unused_devices(std::span<const RankDevices> ranks, std::span<const int> dealt);

// True if two ranks have the same device, or MIG slices that may belong to one GPU. NCCL rejects both.
bool devices_are_shared(std::span<const RankDevices> ranks, std::span<const int> dealt);

// User settings.
struct DeviceSettings {
  std::string device = "auto";  // auto, cpu, cuda, idle
  bool share_device = false;    // several ranks on one GPU, for correctness only
  bool near_cores = true;       // bind a rank to the cores near its GPU (launch/program/devices/cores.h)
  double memory_gib = 0;        // of the device that a rank may use; 0: no limit
  std::size_t memory_limit() const {
    return memory_gib > 0 ? static_cast<std::size_t>(memory_gib * 0x1p30)
                          : std::numeric_limits<std::size_t>::max();
  }
};

// The job of another process that has claimed this GPU or slice on this node, if any.
std::optional<std::string> holder_of_gpu(const NodeClaims& claims, const std::string& uuid);

struct DeviceChoice {
  Device device;
  bool shared = false;      // devices_are_shared(), and world.share_device permits it
  std::string unused = {};  // see unused_devices()
};

// Collective over the host communicator. Returns the device that world.device selects. "auto" selects GPUs
// if the build has CUDA and every rank can get one that no other job has, else the CPU. The claim lasts until
// this process ends or chooses again. Throws agreed ConfigErrors.
DeviceChoice choose_device(const DeviceSettings& settings, World& world, Communicator& host);

}  // namespace lockstep
