// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/nccl_cost.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr double kMicro = 1e-6, kGiga = 1e9;

enum class NcclProtocol : std::uint8_t { ll, ll128, simple };
constexpr NcclProtocol kNcclProtocols[] = {NcclProtocol::ll, NcclProtocol::ll128, NcclProtocol::simple};

// Microseconds of a ring or of a tree.
struct NcclLatencies {
  double base = 0;
  double nvlink_step = 0;
  double network_step = 0;
};
constexpr NcclLatencies kRingLatencies[] = {{6.6, 0.6, 2.7}, {14.0, 1.9, 4.0}, {8.4, 3.4, 14.0}};
constexpr NcclLatencies kTreeLatencies[] = {{6.8, 0.6, 5.0}, {14.0, 1.25, 8.5}, {8.4, 4.0, 14.0}};
constexpr double kNvlsMicroseconds = 25, kNvlsTreeStepMicroseconds = 20.9;

// GB/s. Pairs: two nodes; more nodes. LL in a node depends on the GPU, between nodes on the CPU: the values
// are those of Intel's. The other limits are per channel, and bind between nodes only.
constexpr double kLlBetweenNodes[] = {39.0, 20.4};
struct NcclLimits {
  double ll_in_node = 0;
  double ring_ll128[2] = {};
  double tree[2] = {};
  double tree_ll128[2] = {};
  double nvls_tree[2] = {};
};
constexpr NcclLimits kNcclLimits[] = {
    {87.7, {20.0, 20.0}, {23.6, 17.8}, {20.0, 20.0}, {23.6, 17.8}},
    {141.0, {36.7, 36.7}, {41.4, 36.0}, {36.7, 29.0}, {57.7, 45.5}},
    {282.0, {34.6, 73.4}, {42.8, 24.0}, {31.67, 20.0}, {96.0, 43.8}},
};

// The share of a tree's bandwidth that NCCL expects at 64 B, 128 B, .. 512 MiB.
using TreeShares = std::array<double, 24>;
constexpr TreeShares kTreeShares[] = {
    {1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
     0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0},
    {1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
     0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0},
    {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
     0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 1.0},
};

template <typename Table>
const auto& of_protocol(const Table& table, NcclProtocol protocol) {
  return table[static_cast<std::size_t>(protocol)];
}

// Between two sizes of the table the share changes evenly with the logarithm, so that more bytes never take
// less time.
double tree_share(double bytes, NcclProtocol protocol) {
  const TreeShares& shares = of_protocol(kTreeShares, protocol);
  const double last = static_cast<double>(shares.size() - 1);
  const double place = std::clamp(std::log2(std::max(bytes, 1.0) / 64), 0.0, last);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, shares.size() - 1);
  return std::lerp(shares[below], shares[above], place - std::floor(place));
}

// A GPU sends through one card, so cards beyond the number of GPUs add nothing.
int used_rails(const GpuNodes& nodes) { return std::min(nodes.links.rails, nodes.ranks_per_node); }

// Bus bandwidth that the network of a node allows. NCCL plans with 24 of the 25 GB/s of a card of 200 Gb/s,
// and with 48 of the 50 GB/s of one of 400 Gb/s.
double network_bytes_per_second(const GpuNodes& nodes) {
  constexpr double kUsed = 0.96;
  return kUsed * used_rails(nodes) * nodes.links.rail_bytes_per_second;
}

// The all-reduce of one size between these nodes.
class NcclModel {
 public:
  NcclModel(double bytes, const GpuNodes& nodes)
      : bytes_(bytes),
        nodes_(nodes),
        several_(nodes.nodes > 1),
        ranks_(nodes.ranks()),
        network_(network_bytes_per_second(nodes)),
        limits_(kNcclLimits[static_cast<std::size_t>(nodes.links.generation)]) {}

  double ring_seconds(NcclProtocol protocol) const {
    const bool simple = protocol == NcclProtocol::simple;
    const NcclLatencies& latencies = of_protocol(kRingLatencies, protocol);
    // A rank posts each message of the network itself: 1 us, three times with Simple.
    const double least = several_ ? (simple ? 3.0 : 1.0) : 0.0;
    const double network_step = nodes_.ranks_per_node == 1
                                    ? of_protocol(kTreeLatencies, protocol).network_step
                                    : latencies.network_step;
    const double network_steps = 2.0 * (nodes_.nodes - 1);
    const double steps = 2.0 * (ranks_ - 1) - network_steps;
    double latency = kMicro * (latencies.base + steps * std::max(latencies.nvlink_step, least)) +
                     network_steps * network_seconds(network_step, protocol);
    constexpr double kPlateau = 1.4;
    if (simple && several_) latency *= kPlateau;

    double bus = nodes_.links.ring_bytes_per_second;
    if (several_) bus = in_node_at_most(network_);
    if (protocol == NcclProtocol::ll) bus = std::min(0.5 * bus, ll_limit());
    if (protocol == NcclProtocol::ll128) bus = std::min(0.92 * bus, channel_limit(limits_.ring_ll128));
    return latency + bus_seconds(bus);
  }

  double tree_seconds(NcclProtocol protocol) const {
    const NcclLatencies& latencies = of_protocol(kTreeLatencies, protocol);
    const double latency =
        kMicro * (latencies.base + 2.0 * (nodes_.ranks_per_node - 1) * latencies.nvlink_step) +
        2 * levels() * network_seconds(latencies.network_step, protocol);
    // Between two nodes every byte crosses the network once in each direction, between more nodes twice.
    double bus = several_ ? in_node_at_most(network_through()) : nodes_.links.ring_bytes_per_second;
    bus = std::min(0.92 * bus, channel_limit(limits_.tree));
    if (protocol == NcclProtocol::ll) bus = std::min(bus / 3.8, ll_limit());
    if (protocol == NcclProtocol::ll128)
      bus = std::min(bus * (several_ ? 120.0 / 128 : 7.0 / 9), channel_limit(limits_.tree_ll128));
    constexpr double kOneGpu = 0.85;  // all of a node's traffic passes one GPU
    if (nodes_.ranks_per_node == 1) bus *= kOneGpu;
    return latency + bytes_ / (0.5 * bus * tree_share(bytes_, protocol));
  }

  double nvls_seconds() const { return kMicro * kNvlsMicroseconds + bus_seconds(nvls_bandwidth()); }

  double nvls_tree_seconds() const {
    const double latency = kMicro * kNvlsMicroseconds +
                           2 * levels() * network_seconds(kNvlsTreeStepMicroseconds, NcclProtocol::simple);
    // It has a channel for each GPU with a network card.
    const double limit = kGiga * limits_.nvls_tree[nodes_.nodes > 2] * used_rails(nodes_);
    return latency + bus_seconds(std::min({nvls_bandwidth(), network_through(), limit}));
  }

 private:
  double bus_seconds(double bus) const { return bytes_ * 2 * (ranks_ - 1) / ranks_ / bus; }
  // Simple waits for the network twice: it flushes the received data.
  double network_seconds(double microseconds, NcclProtocol protocol) const {
    return kMicro * microseconds + (protocol == NcclProtocol::simple ? 2 : 1) * nodes_.links.latency_seconds;
  }
  // The bandwidth of links is that of 8 GPUs. A GPU's channel has at most 1.5 times its share of 8.
  double nvls_bandwidth() const {
    return nodes_.links.nvls_bytes_per_second * std::min(1.0, 1.5 * (nodes_.ranks_per_node - 1) / 7);
  }
  double levels() const { return std::bit_width(static_cast<unsigned>(nodes_.nodes)) - 1; }
  // The bandwidth of a tree of nodes through the network of one node.
  double network_through() const { return nodes_.nodes == 2 ? 2 * network_ : network_; }
  // A single GPU has no link in its node.
  double in_node_at_most(double bandwidth) const {
    return nodes_.ranks_per_node == 1 ? bandwidth : std::min(nodes_.links.ring_bytes_per_second, bandwidth);
  }
  double ll_limit() const {
    return kGiga * (several_ ? kLlBetweenNodes[nodes_.nodes > 2] : limits_.ll_in_node);
  }
  double channel_limit(const double (&per_channel)[2]) const {
    constexpr int kFewRails = 4;
    if (!several_) return HUGE_VAL;
    const int rails = used_rails(nodes_);
    const double rail = network_ / rails;
    const bool twice = rail >= 25 * kGiga && (rails <= kFewRails || rail >= 50 * kGiga ||
                                              nodes_.links.generation == NcclGeneration::ampere);
    return kGiga * per_channel[nodes_.nodes > 2] * rails * (twice ? 2 : 1);
  }

  double bytes_;
  const GpuNodes& nodes_;
  bool several_;
  double ranks_;
  double network_;
  const NcclLimits& limits_;
};

bool offers(NcclAlgorithm algorithm, const GpuNodes& nodes) {
  const bool switch_adds = nodes.ranks_per_node > 1 && nodes.links.nvls_bytes_per_second > 0;
  if (algorithm == NcclAlgorithm::nvls) return switch_adds && nodes.nodes == 1;
  if (algorithm == NcclAlgorithm::nvls_tree) return switch_adds && nodes.nodes > 1 && used_rails(nodes) > 1;
  return true;
}

double seconds_by(NcclAlgorithm algorithm, NcclProtocol protocol, const NcclModel& model) {
  switch (algorithm) {
    case NcclAlgorithm::ring:
      return model.ring_seconds(protocol);
    case NcclAlgorithm::tree:
      return model.tree_seconds(protocol);
    case NcclAlgorithm::nvls:
      return model.nvls_seconds();
    case NcclAlgorithm::nvls_tree:
      break;
  }
  return model.nvls_tree_seconds();
}

}  // namespace

std::optional<double> nccl_all_reduce_seconds(double bytes, NcclAlgorithm algorithm, const GpuNodes& nodes) {
  CHECK(nodes.ranks_per_node > 0 && nodes.nodes > 0,
        "an all-reduce needs at least 1 rank, not {} on {} nodes", nodes.ranks_per_node, nodes.nodes);
  if (!offers(algorithm, nodes)) return std::nullopt;
  if (nodes.ranks() == 1) return 0.0;
  CHECK(nodes.ranks_per_node == 1 || nodes.links.ring_bytes_per_second > 0,
        "the links in a node need a bandwidth");
  const NcclModel model(bytes, nodes);
  double seconds = HUGE_VAL;
  for (const NcclProtocol protocol : kNcclProtocols)
    seconds = std::min(seconds, seconds_by(algorithm, protocol, model));
  return seconds;
}

NcclAllReduce nccl_all_reduce(double bytes, const GpuNodes& nodes) {
  NcclAllReduce best{.algorithm = NcclAlgorithm::ring, .seconds = HUGE_VAL};
  for (const NcclAlgorithm algorithm :
       {NcclAlgorithm::ring, NcclAlgorithm::tree, NcclAlgorithm::nvls, NcclAlgorithm::nvls_tree}) {
    const std::optional<double> seconds = nccl_all_reduce_seconds(bytes, algorithm, nodes);
    if (seconds && *seconds < best.seconds) best = {.algorithm = algorithm, .seconds = *seconds};
  }
  return best;
}

}  // namespace lockstep
