// SPDX-License-Identifier: Apache-2.0
#include "launch/device_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

using Users = std::map<std::pair<std::int32_t, std::string>, int>;  // ranks that have a device: node, UUID

std::string to_text(const RankDevices& devices) {
  return fmt::format("{} {} {}", devices.node, devices.host, fmt::join(devices.uuids, " "));
}

RankDevices from_text(const std::string& text) {
  std::istringstream words(text);
  RankDevices devices;
  words >> devices.node >> devices.host;
  for (std::string uuid; words >> uuid;) devices.uuids.push_back(uuid);
  return devices;
}

std::vector<RankDevices> gather_devices(const World& world, Communicator& host, const CudaStatus& cuda) {
  RankDevices mine{.node = world.node(), .host = world.host(), .uuids = {}};
  if (has_backend(DeviceKind::cuda)) {
    for (const CudaDevice& device : cuda.devices) mine.uuids.push_back(device.uuid);
  }
  std::vector<RankDevices> all;
  for (const std::string& text : gather_texts(host, to_text(mine))) all.push_back(from_text(text));
  return all;
}

void require_devices(const World& world, const CudaStatus& cuda) {
  if (!cuda.built) {
    throw ConfigError(
        "world.device = \"cuda\": this build has no CUDA; configure it with -DLOCKSTEP_CUDA=ON (preset "
        "cuda), or use --device cpu");
  }
  if (cuda.devices.empty()) {
    throw ConfigError(
        fmt::format("world.device = \"cuda\": no CUDA device on {} ({}); check the NVIDIA driver "
                    "(nvidia-smi) and CUDA_VISIBLE_DEVICES, or use --device cpu",
                    world.host(), cuda.message));
  }
  if (!has_backend(DeviceKind::cuda)) {
    throw ConfigError("world.device = \"cuda\": this build has no CUDA kernels; use --device cpu");
  }
}

void require_device_for_each(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  if (std::ranges::count(dealt, -1) == 0) return;
  throw ConfigError(
      fmt::format("world.device = \"cuda\": more ranks than CUDA devices\n{}Start one rank for each device, "
                  "make more of them visible (CUDA_VISIBLE_DEVICES), or, to check results only, let ranks "
                  "share with --set world.share_device=true",
                  device_table(ranks, dealt)));
}

}  // namespace

std::vector<int> deal_devices(std::span<const RankDevices> ranks, DeviceSharing sharing) {
  Users users;
  std::vector<int> dealt;
  for (const RankDevices& rank : ranks) {
    int* fewest = nullptr;
    int chosen = -1;
    for (std::size_t i = 0; i < rank.uuids.size(); ++i) {
      int& others = users[{rank.node, rank.uuids[i]}];
      if ((sharing == DeviceSharing::refused && others > 0) || (fewest != nullptr && others >= *fewest))
        continue;
      fewest = &others;
      chosen = static_cast<int>(i);
    }
    if (fewest != nullptr) ++*fewest;
    dealt.push_back(chosen);
  }
  return dealt;
}

std::string device_table(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  const auto without = static_cast<std::size_t>(std::ranges::find(dealt, -1) - dealt.begin());
  if (without == ranks.size()) return {};
  const std::int32_t node = ranks[without].node;
  std::string table =
      fmt::format("  {:>4}  {:>10}  {:<8}  {}\n", "rank", "local rank", "device", ranks[without].host);
  int local_rank = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].node != node) continue;
    const bool has_one = dealt[rank] >= 0;
    table += fmt::format("  {:>4}  {:>10}  {:<8}  {}\n", rank, local_rank++,
                         has_one ? to_string({DeviceKind::cuda, dealt[rank]}) : "none",
                         has_one ? ranks[rank].uuids[static_cast<std::size_t>(dealt[rank])] : "");
  }
  return table;
}

std::string unused_devices(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  struct Node {
    std::string host;
    std::set<std::string> seen, taken;
  };
  std::map<std::int32_t, Node> nodes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Node& node = nodes[ranks[rank].node];
    node.host = ranks[rank].host;
    node.seen.insert(ranks[rank].uuids.begin(), ranks[rank].uuids.end());
    if (dealt[rank] >= 0) node.taken.insert(ranks[rank].uuids[static_cast<std::size_t>(dealt[rank])]);
  }
  std::string text;
  for (const auto& [number, node] : nodes) {
    const std::size_t unused = node.seen.size() - node.taken.size();
    if (unused > 0)
      text += fmt::format("{}{} of {} on {}", text.empty() ? "" : ", ", unused, node.seen.size(), node.host);
  }
  return text;
}

bool devices_are_shared(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  Users users;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (dealt[rank] < 0) continue;
    std::string uuid = ranks[rank].uuids[static_cast<std::size_t>(dealt[rank])];
    if (uuid.starts_with("MIG-")) uuid = "MIG";
    if (++users[{ranks[rank].node, uuid}] > 1) return true;
  }
  return false;
}

std::optional<CudaDevice> known_gpu(Device device) {
  if (device.kind != DeviceKind::cuda) return std::nullopt;
  const CudaStatus cuda = cuda_status();
  const auto index = static_cast<std::size_t>(device.index);
  return index < cuda.devices.size() ? std::optional(cuda.devices[index]) : std::nullopt;
}

DeviceChoice choose_device(const DeviceSettings& settings, const World& world, Communicator& host) {
  const std::string& wanted = settings.device;
  if (wanted == "cpu") return {};
  const CudaStatus cuda = cuda_status();
  if (wanted == "cuda") run_agreed(host, [&] { require_devices(world, cuda); });

  const std::vector<RankDevices> ranks = gather_devices(world, host, cuda);
  const std::vector<int> dealt =
      deal_devices(ranks, settings.share_device ? DeviceSharing::allowed : DeviceSharing::refused);
  if (wanted == "auto" && std::ranges::count(dealt, -1) > 0) return {};
  run_agreed(host, [&] { require_device_for_each(ranks, dealt); });

  const bool shared = settings.share_device && devices_are_shared(ranks, dealt);
  if (shared) {
    log::shared_warning(
        "ranks share a GPU (world.share_device): correctness only; nothing it measures means anything");
  }
  return {.device = {.kind = DeviceKind::cuda, .index = dealt[static_cast<std::size_t>(world.rank())]},
          .shared = shared,
          .unused = unused_devices(ranks, dealt)};
}

}  // namespace lockstep
