// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/cores.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/agreement.h"
#include "core/log.h"
#include "core/system/near_processors.h"
#include "core/text/text.h"

namespace lockstep {

int machine_cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

namespace {

RankCores cores_of_this_process(int node) {
  RankCores mine{.node = node, .machine_cores = machine_cores()};
  const std::vector<ProcessorQuota> quotas = processor_quotas();
  std::copy_n(quotas.begin(), std::min(quotas.size(), mine.quotas.size()), mine.quotas.begin());
  CPU_ZERO(&mine.usable);
  if (sched_getaffinity(0, sizeof(mine.usable), &mine.usable) == 0) return mine;
  for (int core = 0; core < std::min(mine.machine_cores, CPU_SETSIZE); ++core) CPU_SET(core, &mine.usable);
  return mine;
}

constexpr double kRounding = 1e-6;  // tolerance, so that three times 1/3 counts as 1

// The time that CPU quotas leave a rank, in cores; infinite without one.
double time_of(const RankCores& rank, std::span<const RankCores> ranks) {
  double least = std::numeric_limits<double>::infinity();
  for (const ProcessorQuota& quota : rank.quotas) {
    if (quota.cores <= 0) continue;
    const auto shares = [&](const RankCores& other) {
      return other.node == rank.node &&
             std::ranges::find(other.quotas, quota.group, &ProcessorQuota::group) != other.quotas.end();
    };
    least = std::min(least, quota.cores / static_cast<double>(std::ranges::count_if(ranks, shares)));
  }
  return least;
}

struct NodeUse {
  // Cores of its ranks, limited by their quota.
  double time() const { return std::min(quota, static_cast<double>(CPU_COUNT(&cores))); }

  std::vector<std::size_t> ranks;
  std::vector<int> on_one_core;  // bound to one core of a machine with several
  cpu_set_t cores = {};
  double quota = 0;  // sum over its ranks, in cores
  int threads = 0;
};

std::map<int, NodeUse> use_of_nodes(std::span<const RankCores> ranks, std::span<const int> threads) {
  std::map<int, NodeUse> nodes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    NodeUse& node = nodes[ranks[rank].node];
    node.ranks.push_back(rank);
    node.threads += threads[rank];
    node.quota += time_of(ranks[rank], ranks);
    CPU_OR(&node.cores, &node.cores, &ranks[rank].usable);
    if (CPU_COUNT(&ranks[rank].usable) == 1 && ranks[rank].machine_cores > 1)
      node.on_one_core.push_back(static_cast<int>(rank));
  }
  return nodes;
}

// Empty if the node has no contention.
std::string describe_node(const NodeUse& node, std::span<const RankCores> ranks) {
  const int cores = CPU_COUNT(&node.cores);
  const std::string which = counted(cores, "core");
  if (static_cast<int>(node.ranks.size()) > cores) {
    return fmt::format("{} ranks share {} and wait for each other instead of computing: start fewer ranks",
                       node.ranks.size(), which);
  }
  if (node.threads > cores) {
    return fmt::format(
        "{} threads of {} compute on {}: lower train.threads (0: as many as there are cores), or bind ranks "
        "to separate cores",
        node.threads, counted(node.ranks.size(), "rank"), which);
  }
  if (node.threads > node.quota + kRounding) {
    return fmt::format(
        "{} of {} compute on {}, of which a CPU quota of the control group grants them the time of {:.3g}: "
        "start fewer ranks, lower train.threads (0: as many as the quota grants), or raise the quota (docker "
        "run --cpus, Kubernetes' limits.cpu)",
        counted(node.threads, "thread"), counted(node.ranks.size(), "rank"), which, node.quota);
  }
  if (node.on_one_core.empty()) return {};
  return fmt::format(
      "{} may use one core of {}, so communication has no free core for overlap: start with mpirun "
      "--bind-to none, or srun --cpus-per-task",
      named_ranks(node.on_one_core), ranks[static_cast<std::size_t>(node.on_one_core.front())].machine_cores);
}

}  // namespace

int usable_cores() {
  const RankCores mine = cores_of_this_process(0);
  const double time = std::min(time_of(mine, {&mine, 1}), static_cast<double>(CPU_COUNT(&mine.usable)));
  return std::max(1, static_cast<int>(time + kRounding));
}

std::vector<int> divide_cores(std::span<const RankCores> ranks, std::int64_t wanted) {
  if (wanted > 0) return std::vector<int>(ranks.size(), static_cast<int>(wanted));
  std::map<int, std::array<int, CPU_SETSIZE>> users;  // by node and core
  const auto for_each_core = [&](const RankCores& rank, const auto& action) {
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &rank.usable)) action(users[rank.node][core]);
  };
  for (const RankCores& rank : ranks) for_each_core(rank, [](int& count) { ++count; });
  std::vector<int> threads;
  for (const RankCores& rank : ranks) {
    double share = 0;
    for_each_core(rank, [&](int count) { share += 1.0 / count; });
    share = std::min(share, time_of(rank, ranks));
    threads.push_back(std::max(1, static_cast<int>(share + kRounding)));
  }
  return threads;
}

std::string describe_contention(std::span<const RankCores> ranks, std::span<const int> threads) {
  std::vector<std::string> found;
  for (const auto& [number, node] : use_of_nodes(ranks, threads)) {
    std::string text = describe_node(node, ranks);
    if (!text.empty()) found.push_back(std::move(text));
  }
  if (found.size() < 2) return found.empty() ? "" : found.front();
  return fmt::format("{} (so it is on {})", found.front(), counted(found.size() - 1, "more node"));
}

ThreadChoice choose_threads(std::int64_t wanted, const World& world, Communicator& host) {
  const RankCores mine = cores_of_this_process(world.node());
  const std::vector<RankCores> ranks = gather_values(host, mine);
  const std::vector<int> cores = divide_cores(ranks, 0);
  const std::vector<int> threads = wanted > 0 ? divide_cores(ranks, wanted) : cores;
  const std::string contention = describe_contention(ranks, threads);
  if (!contention.empty()) log::shared_warning("{}", contention);
  const NodeUse node = use_of_nodes(ranks, threads).at(world.node());
  if (host.rank() == 0 && wanted == 0 && node.quota < CPU_COUNT(&node.cores)) {
    log::info(
        "{} per rank: a CPU quota of the control group grants this node's ranks the time of {:.3g} of {} "
        "cores",
        counted(threads[0], "thread"), node.quota, CPU_COUNT(&node.cores));
  }
  const auto rank = static_cast<std::size_t>(host.rank());
  return {.threads = threads[rank],
          .cores = cores[rank],
          .node_cores = std::max(1, static_cast<int>(node.time() + kRounding))};
}

int keep_near(const cpu_set_t& near) {
  cpu_set_t usable = cores_of_this_process(0).usable;
  CPU_AND(&usable, &usable, &near);
  const int count = CPU_COUNT(&usable);
  if (count > 0) sched_setaffinity(0, sizeof(usable), &usable);
  return count;
}

void keep_near(Device device) {
  const std::optional<CudaDevice> known = cuda_device(device);
  if (!known) return;
  const std::string& address = known->pci_address;
  const std::optional<cpu_set_t> near = processors_near(address);
  if (!near)
    return log::debug("the system does not report which cores are near {} ({})", to_string(device), address);
  if (const int count = keep_near(*near); count > 0)
    return log::debug("bound to the {} usable cores near {} ({})", count, to_string(device), address);
  log::warning(
      "{} ({}) is near none of the cores that this rank may use, so copies to it cross sockets: bind ranks "
      "to the cores of their GPUs (mpirun --map-by numa, srun --gpu-bind=closest), or start them with "
      "--bind-to none",
      to_string(device), address);
}

void set_niceness(Stream& stream, std::int64_t niceness) {
  if (niceness == 0) return;
  stream.enqueue(
      [niceness] { setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), static_cast<int>(niceness)); });
}

}  // namespace lockstep
