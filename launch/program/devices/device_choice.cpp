// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/device_choice.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/json_text.h"
#include "kernels/backend.h"
#include "launch/program/devices/device_use.h"
#include "launch/train/hold.h"

namespace lockstep {
namespace {

using Users = std::map<std::pair<std::int32_t, std::string>, int>;  // number of ranks by device: node, UUID

std::string claim_of(const std::string& uuid) { return "gpu." + uuid; }

std::string to_text(const RankDevices& devices) {
  return dumped(
      nlohmann::json{devices.node, devices.host, devices.uuids, devices.own, devices.taken, devices.use});
}

RankDevices from_text(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {.node = json[0],
          .host = json[1],
          .uuids = json[2],
          .own = json[3],
          .taken = json[4].get<std::map<std::string, std::string>>(),
          .use = json[5].get<std::map<std::string, int>>()};
}

RankDevices my_devices(World& world, const CudaStatus& cuda, const std::map<std::string, int>& use) {
  RankDevices mine{.node = world.node(), .host = world.host(), .uuids = {}, .use = use};
  if (!has_backend(DeviceKind::cuda)) return mine;
  for (const CudaDevice& device : cuda.devices) {
    mine.uuids.push_back(device.unusable.empty() ? device.uuid : "");  // the later devices keep their indices
    if (!device.unusable.empty()) continue;
    if (world.claims().is_mine(claim_of(device.uuid))) mine.own.insert(device.uuid);
    if (const auto holder = holder_of_gpu(world.claims(), device.uuid)) mine.taken[device.uuid] = *holder;
  }
  return mine;
}

std::vector<RankDevices> gather_devices(Communicator& host, const RankDevices& mine) {
  std::vector<RankDevices> all;
  for (const std::string& text : gather_texts(host, to_text(mine))) all.push_back(from_text(text));
  keep_to_other_jobs(all);
  return all;
}

// The devices that this build cannot use, with the reasons: one line each, after a line feed.
std::string unusable_table(const CudaStatus& cuda) {
  std::string table;
  for (std::size_t i = 0; i < cuda.devices.size(); ++i) {
    const CudaDevice& device = cuda.devices[i];
    if (!device.unusable.empty())
      table += fmt::format("\n  cuda:{}  {}: {}", i, device.name, device.unusable);
  }
  return table;
}

void require_devices(const std::string& wanted, const World& world, const CudaStatus& cuda) {
  if (!cuda.built) {
    throw ConfigError(
        fmt::format("world.device = \"{}\": this build has no CUDA; configure it with -DLOCKSTEP_CUDA=ON "
                    "(preset cuda), or use --device cpu",
                    wanted));
  }
  if (cuda.devices.empty()) {
    throw ConfigError(
        fmt::format("world.device = \"{}\": no CUDA device on {} ({}); check the NVIDIA driver "
                    "(nvidia-smi) and CUDA_VISIBLE_DEVICES, or use --device cpu",
                    wanted, world.host(), cuda.message));
  }
  if (!has_backend(DeviceKind::cuda)) {
    throw ConfigError(
        fmt::format("world.device = \"{}\": this build has no CUDA kernels; use --device cpu", wanted));
  }
  if (std::ranges::all_of(cuda.devices, [](const CudaDevice& each) { return !each.unusable.empty(); })) {
    throw ConfigError(fmt::format(
        "world.device = \"{}\": this build can use no CUDA device of {}:{}\nMake other devices visible "
        "(CUDA_VISIBLE_DEVICES), or use --device cpu",
        wanted, world.host(), unusable_table(cuda)));
  }
}

void require_device_for_each(const std::string& wanted, std::span<const RankDevices> ranks,
                             std::span<const int> dealt) {
  if (std::ranges::count(dealt, -1) == 0) return;
  const std::string taken = taken_table(ranks, dealt);
  if (!taken.empty()) {
    throw ConfigError(fmt::format(
        "world.device = \"{}\": fewer free CUDA devices than ranks\n{}claimed by other jobs:\n{}Wait until "
        "they end, start fewer ranks, make other devices visible (CUDA_VISIBLE_DEVICES), or, to check "
        "results only, share their devices with --set world.share_device=true",
        wanted, device_table(ranks, dealt), taken));
  }
  throw ConfigError(fmt::format(
      "world.device = \"{}\": too few usable CUDA devices for the ranks\n{}Start one rank per device, "
      "make more of them visible (CUDA_VISIBLE_DEVICES), or, to check results only, let ranks "
      "share with --set world.share_device=true",
      wanted, device_table(ranks, dealt)));
}

const std::string& uuid_of(std::span<const RankDevices> ranks, std::span<const int> dealt, std::size_t rank) {
  return ranks[rank].uuids[static_cast<std::size_t>(dealt[rank])];
}

// The turn in which each rank claims its device. Ranks of a node claim in the order of UUIDs, so that of two
// jobs which want the same devices one job wins all of them. The lowest rank that shares a device claims it;
// the others never do: -1.
std::vector<int> turns_of(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  std::map<std::int32_t, std::map<std::string, std::size_t>> claimants;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    claimants[ranks[rank].node].emplace(uuid_of(ranks, dealt, rank), rank);
  std::vector<int> turns(ranks.size(), -1);
  for (const auto& [node, by_uuid] : claimants) {
    int turn = 0;
    for (const auto& [uuid, rank] : by_uuid) turns[rank] = turn++;
  }
  return turns;
}

// Collective. Each rank releases its other claims. Returns false if another job claimed a device first; with
// DeviceSharing::allowed that does not matter, and the result is true.
bool claim_dealt(std::span<const RankDevices> ranks, std::span<const int> dealt, DeviceSharing sharing,
                 World& world, Communicator& host) {
  const auto rank = static_cast<std::size_t>(world.rank());
  const std::vector<int> turns = turns_of(ranks, dealt);
  const std::string& uuid = uuid_of(ranks, dealt, rank);
  const std::string name = claim_of(uuid);
  world.claims().keep_only(turns[rank] >= 0 ? name : "");
  for (int turn = 0; turn <= *std::ranges::max_element(turns); ++turn) {
    const bool claimed = turns[rank] == turn && !world.claims().claim(name);
    if (sharing == DeviceSharing::allowed) continue;
    const bool lost = turns[rank] == turn && !claimed;
    if (first_rank_where(host, lost) < 0) continue;
    // A rank that MPI assigns to another node may use the same claims folder and devices.
    const std::vector<std::string> held = gather_texts(host, world.claims().is_mine(name) ? uuid : "");
    if (first_rank_where(host, lost && std::ranges::count(held, uuid) == 0) >= 0) return false;
  }
  return true;
}

// With "auto": warns that the CPU is used although there are GPUs.
void tell_of_cpu(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  if (const std::string taken = taken_table(ranks, dealt); !taken.empty()) {
    log::shared_warning(
        "world.device = \"auto\": the CPU is used, because fewer CUDA devices are free than there are ranks; "
        "claimed by other jobs:\n{}With --device cuda this job would end with an error instead",
        taken);
  } else if (!std::ranges::all_of(ranks, [](const RankDevices& each) { return each.uuids.empty(); })) {
    log::shared_warning(
        "world.device = \"auto\": the CPU is used, because there are too few usable CUDA devices for the "
        "ranks\n{}Start one rank per device, or make more of them visible (CUDA_VISIBLE_DEVICES). With "
        "--device cuda this job would end with an error instead",
        device_table(ranks, dealt));
  }
}

// Finds a device for a rank that has none: an augmenting path of the bipartite matching of ranks and devices.
struct DeviceExchange {
  std::span<const RankDevices> ranks;
  std::vector<int>& dealt;
  std::map<std::pair<std::int32_t, std::string>, std::size_t> owners = {};  // rank by device: node, UUID
  std::set<std::string> seen = {};  // the devices that this search has tried
  bool move_own = false;            // ranks may change devices that they have claimed

  // Returns false, and changes nothing, if there is no path.
  bool find(std::size_t rank) {
    const RankDevices& devices = ranks[rank];
    for (std::size_t i = 0; i < devices.uuids.size(); ++i) {
      const std::string& uuid = devices.uuids[i];
      if (uuid.empty() || devices.taken.contains(uuid) || !seen.insert(uuid).second) continue;
      if (const auto found = owners.find({devices.node, uuid}); found != owners.end()) {
        const std::size_t owner = found->second;
        if ((ranks[owner].own.contains(uuid) && !move_own) || !find(owner)) continue;
      }
      owners[{devices.node, uuid}] = rank;
      dealt[rank] = static_cast<int>(i);
      return true;
    }
    return false;
  }
};

void exchange_devices(std::span<const RankDevices> ranks, std::vector<int>& dealt) {
  DeviceExchange exchange{.ranks = ranks, .dealt = dealt};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (dealt[rank] >= 0) exchange.owners[{ranks[rank].node, uuid_of(ranks, dealt, rank)}] = rank;
  for (const bool move_own : {false, true}) {
    exchange.move_own = move_own;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (dealt[rank] >= 0) continue;
      exchange.seen.clear();
      exchange.find(rank);
    }
  }
}

struct Deal {
  std::vector<RankDevices> ranks;
  std::vector<int> devices;  // per rank; -1: none
  bool complete() const { return std::ranges::count(devices, -1) == 0; }
};

// Collective. Repeats the assignment if another job claimed a device first, whose claim is then visible. If
// too few devices are free, retries for 3 s: processes of a job that was just restarted may still be exiting.
Deal deal_and_claim(const DeviceSettings& settings, World& world, Communicator& host, const CudaStatus& cuda,
                    const std::map<std::string, int>& use) {
  constexpr int kMostDeals = 16, kMostWaits = 12;
  constexpr std::chrono::milliseconds kWait{250};
  const auto sharing = settings.share_device ? DeviceSharing::allowed : DeviceSharing::refused;
  for (int lost = 0, waits = 0; lost < kMostDeals;) {
    Deal deal{.ranks = gather_devices(host, my_devices(world, cuda, use)), .devices = {}};
    deal.devices = deal_devices(deal.ranks, sharing);
    if (deal.complete()) {
      if (claim_dealt(deal.ranks, deal.devices, sharing, world, host)) return deal;
      ++lost;
    } else {
      if (waits == kMostWaits || taken_table(deal.ranks, deal.devices).empty()) return deal;
      ++waits;
      hold_in("claim");
      std::this_thread::sleep_for(kWait);
    }
  }
  throw_agreed(
      ConfigError(fmt::format("world.device = \"{}\": other jobs that started at the same time claimed the "
                              "CUDA devices first, {} times; start this job again",
                              settings.device, kMostDeals)));
}

}  // namespace

void keep_to_other_jobs(std::span<RankDevices> ranks) {
  std::set<std::string> own;
  for (const RankDevices& rank : ranks) own.insert(rank.own.begin(), rank.own.end());
  for (RankDevices& rank : ranks)
    std::erase_if(rank.taken, [&](const auto& each) { return own.contains(each.first); });
}

std::vector<int> deal_devices(std::span<const RankDevices> ranks, DeviceSharing sharing) {
  const bool alone = sharing == DeviceSharing::refused;
  Users users;
  std::vector<int> dealt(ranks.size(), -1);
  const auto deal = [&](std::size_t rank, bool among_own) {
    const RankDevices& devices = ranks[rank];
    std::pair<int, int> least;  // users, use
    for (std::size_t i = 0; i < devices.uuids.size(); ++i) {
      const std::string& uuid = devices.uuids[i];
      if (uuid.empty()) continue;
      const auto used = devices.use.find(uuid);
      const std::pair rate{users[{devices.node, uuid}], used != devices.use.end() ? used->second : 0};
      if (among_own && !devices.own.contains(uuid)) continue;
      if (alone && (rate.first > 0 || devices.taken.contains(uuid))) continue;
      if (dealt[rank] >= 0 && rate >= least) continue;
      least = rate;
      dealt[rank] = static_cast<int>(i);
    }
    if (dealt[rank] >= 0) ++users[{devices.node, uuid_of(ranks, dealt, rank)}];
  };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (alone) deal(rank, true);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (dealt[rank] < 0) deal(rank, false);
  if (alone) exchange_devices(ranks, dealt);
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
                         has_one ? uuid_of(ranks, dealt, rank) : "");
  }
  return table;
}

std::string taken_table(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  const auto without = static_cast<std::size_t>(std::ranges::find(dealt, -1) - dealt.begin());
  if (without == ranks.size()) return {};
  std::map<std::string, std::string> taken;
  for (const RankDevices& rank : ranks)
    if (rank.node == ranks[without].node) taken.insert(rank.taken.begin(), rank.taken.end());
  std::string table;
  for (const auto& [uuid, holder] : taken) table += fmt::format("  {}  {}\n", uuid, holder);
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
    for (const std::string& uuid : ranks[rank].uuids)
      if (!uuid.empty() && !ranks[rank].taken.contains(uuid)) node.seen.insert(uuid);
    if (dealt[rank] >= 0) node.taken.insert(uuid_of(ranks, dealt, rank));
  }
  std::string text;
  for (const auto& [number, node] : nodes) {
    // With DeviceSharing::allowed a rank may have a device that another job has claimed.
    const auto unused = std::ranges::count_if(
        node.seen, [&taken = node.taken](const std::string& uuid) { return !taken.contains(uuid); });
    if (unused > 0)
      text += fmt::format("{}{} of {} on {}", text.empty() ? "" : ", ", unused, node.seen.size(), node.host);
  }
  return text;
}

bool devices_are_shared(std::span<const RankDevices> ranks, std::span<const int> dealt) {
  Users users;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (dealt[rank] < 0) continue;
    std::string uuid = uuid_of(ranks, dealt, rank);
    if (uuid.starts_with("MIG-")) uuid = "MIG";
    if (++users[{ranks[rank].node, uuid}] > 1) return true;
  }
  return false;
}

std::optional<std::string> holder_of_gpu(const NodeClaims& claims, const std::string& uuid) {
  return claims.other_holder(claim_of(uuid));
}

DeviceChoice choose_device(const DeviceSettings& settings, World& world, Communicator& host) {
  const std::string& wanted = settings.device;
  if (wanted == "cpu") return {};
  const CudaStatus cuda = cuda_status();
  if (wanted != "auto") run_agreed(host, [&] { require_devices(wanted, world, cuda); });

  if (const std::string unusable = unusable_table(cuda); !unusable.empty() && world.local_rank() == 0)
    log::warning("these CUDA devices of {} are not used:{}", world.host(), unusable);

  std::map<std::string, int> use;
  if (wanted == "idle") use = use_of_devices(cuda.devices);
  const Deal deal = deal_and_claim(settings, world, host, cuda, use);
  if (wanted == "auto" && !deal.complete()) {
    tell_of_cpu(deal.ranks, deal.devices);
    world.claims().keep_only("");
    return {};
  }
  run_agreed(host, [&] { require_device_for_each(wanted, deal.ranks, deal.devices); });

  const auto rank = static_cast<std::size_t>(world.rank());
  const std::string& uuid = uuid_of(deal.ranks, deal.devices, rank);
  if (const auto used = use.find(uuid); used != use.end() && !deal.ranks[rank].own.contains(uuid))
    warn_of_use(used->first, used->second);
  const bool shared = settings.share_device && devices_are_shared(deal.ranks, deal.devices);
  if (shared) {
    log::shared_warning(
        "ranks share a GPU (world.share_device): results are right, but all measured times are meaningless");
  }
  return {.device = {.kind = DeviceKind::cuda, .index = deal.devices[rank]},
          .shared = shared,
          .unused = unused_devices(deal.ranks, deal.devices)};
}

}  // namespace lockstep
