// SPDX-License-Identifier: Apache-2.0
//
// Which device each rank computes on. Every rank sees only its own node's devices, and perhaps only some of
// them; all ranks tell each other what they see and deal the devices alike.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/world.h"

namespace lockstep {

struct RankDevices {
  std::int32_t node = 0;
  std::string host;
  std::vector<std::string> uuids;  // of the CUDA devices it sees, in their order
};

enum class DeviceSharing { refused, allowed };

// For each rank the index of its device among those it sees, or -1 where none is left for it. The ranks of a
// node take turns; each takes the first device it sees that nobody has yet. So local rank i gets device i
// where all see the same, and index 0 where a launcher, or MIG, shows each rank a device of its own. With
// DeviceSharing::allowed a rank takes the first of those that the fewest have.
std::vector<int> deal_devices(std::span<const RankDevices> ranks, DeviceSharing sharing);

// The ranks of the first node on which somebody has no device, as lines: rank, local rank, device or none.
std::string device_table(std::span<const RankDevices> ranks, std::span<const int> dealt);

// The devices that some rank of their node sees and none takes: "4 of 8 on node7, 4 of 8 on node8"; empty:
// none.
std::string unused_devices(std::span<const RankDevices> ranks, std::span<const int> dealt);

// Whether two ranks have the same device, or MIG slices of what may be the same: NCCL takes both for
// mistakes.
bool devices_are_shared(std::span<const RankDevices> ranks, std::span<const int> dealt);

// As a person gives it.
struct DeviceSettings {
  std::string device = "auto";  // auto, cpu, cuda
  bool share_device = false;    // several ranks on one GPU, for correctness only
  bool near_cores = true;       // a rank keeps to the cores that its GPU hangs on (launch/cores.h)
};

// What CUDA tells of a GPU; nothing of the CPU.
std::optional<CudaDevice> known_gpu(Device device);

struct DeviceChoice {
  Device device;
  bool shared = false;      // devices_are_shared, and that is meant
  std::string unused = {};  // see unused_devices()
};

// Collective over the host communicator. What world.device asks for, or with "auto" a GPU where the build and
// the machines have one for every rank, else the CPU. Throws agreed ConfigErrors.
DeviceChoice choose_device(const DeviceSettings& settings, const World& world, Communicator& host);

}  // namespace lockstep
