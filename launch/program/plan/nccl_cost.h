// SPDX-License-Identifier: Apache-2.0
//
// The time of NCCL's all-reduce between GPUs, as NCCL itself estimates it to choose an algorithm and a
// protocol: a latency for each step, and the bytes over a bandwidth. Latencies, shares and limits are those
// of NCCL 2.28.9 (src/graph/tuning.cc, src/graph/search.cc); bandwidths come from the caller. Pure
// arithmetic: no GPU, no clock.
//
// Bandwidths in a node are *bus bandwidths*, as nccl-tests prints them: bytes * 2 (n - 1) / n / seconds for n
// GPUs. Not modelled: switches of the network that add (SHARP), GPUs of a node that are joined by PCIe only,
// and NCCL's search for paths: each network card carries one channel, or two where cards are few and fast.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep {

enum class NcclAlgorithm : std::uint8_t { ring, tree, nvls, nvls_tree };
inline constexpr std::string_view kNcclAlgorithmWords[] = {"ring", "tree", "nvls", "nvls tree"};
constexpr std::span<const std::string_view> words_of(NcclAlgorithm) { return kNcclAlgorithmWords; }

// NCCL has its own limits for each. Later generations use those of Blackwell, earlier ones those of Ampere.
enum class NcclGeneration : std::uint8_t { ampere, hopper, blackwell };

struct NcclLinks {
  NcclGeneration generation = NcclGeneration::hopper;
  double ring_bytes_per_second = 0;  // bus bandwidth of a ring over NVLink, in one node
  double nvls_bytes_per_second = 0;  // the same where the NVLink switch adds (NVLS); 0: it does not add
  int rails = 1;                     // network cards of a node
  double rail_bytes_per_second = 0;  // of one card, in each direction
  double latency_seconds = 0;        // of a message, in addition to NCCL's own latency of the network
};

// Nodes with an equal number of GPUs, one rank for each.
struct GpuNodes {
  int ranks_per_node = 1;
  int nodes = 1;
  NcclLinks links;

  int ranks() const { return ranks_per_node * nodes; }
};

// The time with the algorithm's fastest protocol; 0 for one rank, infinite between nodes whose network has no
// bandwidth. nullopt where NCCL does not offer the algorithm: nvls is for one node, nvls_tree for several
// nodes, both for at least two GPUs in a node whose switch adds.
std::optional<double> nccl_all_reduce_seconds(double bytes, NcclAlgorithm algorithm, const GpuNodes& nodes);

struct NcclAllReduce {
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  double seconds = 0;
};
// The fastest algorithm.
NcclAllReduce nccl_all_reduce(double bytes, const GpuNodes& nodes);

}  // namespace lockstep
