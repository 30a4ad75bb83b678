// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/all_reduce_cost.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

double bytes_seconds(double bytes, const Tier& tier) {
  return bytes > 0 ? bytes / tier.bytes_per_second + bytes * tier.seconds_per_byte : 0;
}

// Two members that communicate at one level of recursive halving.
struct Pair {
  std::size_t lower = 0;
  std::size_t upper = 0;
  double part = 0;     // sent fraction of the data
  bool gives = false;  // one way: upper to lower, back in the all-gather; else both send
};

// The pairs of all neighbouring subtrees whose left one has this width.
std::vector<Pair> pairs_at(std::size_t width, std::size_t members) {
  std::vector<Pair> pairs;
  for (std::size_t left = 0; left + width < members; left += 2 * width) {
    const std::size_t middle = left + width;
    const std::size_t right = std::min(members - middle, width);
    const std::size_t holders = std::bit_floor(right);
    const double held = 1.0 / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) {
      const bool gives = right < width;
      pairs.push_back({.lower = left + i,
                       .upper = middle + (gives ? i % holders : i),
                       .part = gives ? held : held / 2,
                       .gives = gives});
    }
  }
  return pairs;
}

struct Member {
  double ready_seconds = 0;
  std::int64_t sent = 0;
};

class Messages {
 public:
  Messages(int members, const Tier& tier) : tier_(tier), members_(static_cast<std::size_t>(members)) {}

  void send(std::size_t from, std::size_t to, double bytes) {
    sent(from);
    const double begin = std::max(members_[from].ready_seconds, members_[to].ready_seconds);
    members_[from].ready_seconds = members_[to].ready_seconds =
        begin + tier_.latency_seconds + bytes_seconds(bytes, tier_);
  }
  // Both send at once.
  void exchange(std::size_t a, std::size_t b, double bytes) {
    send(a, b, bytes);
    sent(b);
  }
  // Each member i sends to (i + distance) % members, all at once.
  void rotate(std::size_t distance, double bytes) {
    const std::size_t count = members_.size();
    std::vector<double> begin(count);
    for (std::size_t from = 0; from < count; ++from) {
      sent(from);
      const std::size_t to = (from + distance) % count;
      begin[to] = std::max(members_[from].ready_seconds, members_[to].ready_seconds);
    }
    for (std::size_t i = 0; i < count; ++i)
      members_[i].ready_seconds = begin[i] + tier_.latency_seconds + bytes_seconds(bytes, tier_);
  }

  AllReduceRun result() const {
    AllReduceRun run{.messages = messages_};
    for (const Member& member : members_) {
      run.seconds = std::max(run.seconds, member.ready_seconds);
      run.most_sent = std::max(run.most_sent, member.sent);
    }
    return run;
  }

 private:
  void sent(std::size_t from) {
    ++messages_;
    ++members_[from].sent;
  }

  const Tier& tier_;
  std::vector<Member> members_;
  std::int64_t messages_ = 0;
};

void run_halving(Messages& messages, double bytes, std::size_t members) {
  std::size_t width = 1;
  for (; width < members; width *= 2)
    for (const Pair& pair : pairs_at(width, members))
      pair.gives ? messages.send(pair.upper, pair.lower, pair.part * bytes)
                 : messages.exchange(pair.lower, pair.upper, pair.part * bytes);
  for (width /= 2; width > 0; width /= 2)
    for (const Pair& pair : pairs_at(width, members))
      pair.gives ? messages.send(pair.lower, pair.upper, pair.part * bytes)
                 : messages.exchange(pair.lower, pair.upper, pair.part * bytes);
}

void run_direct(Messages& messages, double bytes, std::size_t members) {
  for (int phase = 0; phase < 2; ++phase)
    for (std::size_t distance = 1; distance < members; ++distance)
      messages.rotate(distance, bytes / static_cast<double>(members));
}

// Resolves automatic to the faster of halving and direct.
AllReduceWay taken_way(double bytes, int members, AllReduceWay way, const Tier& tier) {
  if (way != AllReduceWay::automatic) return way;
  const double halving = all_reduce_seconds(bytes, members, AllReduceWay::halving, tier);
  const double direct = all_reduce_seconds(bytes, members, AllReduceWay::direct, tier);
  return direct < halving ? AllReduceWay::direct : AllReduceWay::halving;
}

AllReducePath path_between_nodes(double bytes, const Cluster& cluster) {
  return all_reduce_path(cluster.nodes, taken_way(bytes, cluster.nodes, cluster.way, cluster.between_nodes));
}

// Each rank reads its part of every peer's data, then the reduced parts of all peers.
double volume_in_node(const Cluster& cluster) {
  const double ranks = cluster.ranks_per_node;
  return 2 * (ranks - 1) / ranks;
}

// A member sends in the all-gather what it received in the reduce-scatter.
AllReducePath halving_path(std::size_t members) {
  const auto levels = static_cast<double>(std::bit_width(members - 1));
  if (std::has_single_bit(members)) {
    const auto parts = static_cast<double>(members);
    return {.messages = 2 * levels, .volume = 2 * (parts - 1) / parts};
  }
  std::vector<double> sent(members);
  for (std::size_t width = 1; width < members; width *= 2) {
    for (const Pair& pair : pairs_at(width, members)) {
      sent[pair.lower] += pair.gives ? pair.part : 2 * pair.part;
      sent[pair.upper] += pair.gives ? pair.part : 2 * pair.part;
    }
  }
  return {.messages = 2 * levels, .volume = std::ranges::max(sent)};
}

}  // namespace

AllReducePath all_reduce_path(int members, AllReduceWay way) {
  CHECK(members > 0, "an all-reduce needs at least 1 member, not {}", members);
  CHECK(way != AllReduceWay::mpi, "MPI's own all-reduce has no model");
  const AllReducePath direct{.messages = 2.0 * (members - 1), .volume = 2.0 * (members - 1) / members};
  if (way == AllReduceWay::direct) return direct;
  const AllReducePath halving = halving_path(static_cast<std::size_t>(members));
  return way == AllReduceWay::automatic && direct.volume < halving.volume ? direct : halving;
}

double all_reduce_seconds(double bytes, int members, AllReduceWay way, const Tier& tier) {
  const AllReducePath path = all_reduce_path(members, taken_way(bytes, members, way, tier));
  return path.messages * tier.latency_seconds + bytes_seconds(path.volume * bytes, tier);
}

GpuNodes gpu_nodes(const Cluster& cluster) {
  CHECK(cluster.nccl, "the cluster has no links of NCCL");
  return {.ranks_per_node = cluster.ranks_per_node, .nodes = cluster.nodes, .links = *cluster.nccl};
}

double all_reduce_seconds(double bytes, const Cluster& cluster) {
  if (cluster.nccl) return nccl_all_reduce(bytes, gpu_nodes(cluster)).seconds;
  const AllReducePath nodes = path_between_nodes(bytes, cluster);
  const double latency = nodes.messages * cluster.between_nodes.latency_seconds +
                         (cluster.ranks_per_node > 1 ? 2 * cluster.in_node.latency_seconds : 0);
  return latency + std::max(bytes_seconds(volume_in_node(cluster) * bytes, cluster.in_node),
                            bytes_seconds(nodes.volume * bytes, cluster.between_nodes));
}

double all_reduce_sent_bytes(double bytes, const Cluster& cluster) {
  if (cluster.nccl) return bytes * 2 * (cluster.ranks() - 1) / cluster.ranks();
  return bytes *
         (volume_in_node(cluster) + path_between_nodes(bytes, cluster).volume / cluster.ranks_per_node);
}

AllReduceRun simulate_all_reduce(double bytes, int members, AllReduceWay way, const Tier& tier) {
  way = taken_way(bytes, members, way, tier);
  CHECK(members > 0, "an all-reduce needs at least 1 member, not {}", members);
  Messages messages(members, tier);
  const auto count = static_cast<std::size_t>(members);
  way == AllReduceWay::halving ? run_halving(messages, bytes, count) : run_direct(messages, bytes, count);
  return messages.result();
}

}  // namespace lockstep
