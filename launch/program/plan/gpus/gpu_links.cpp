// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/gpus/gpu_links.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/text.h"
#include "launch/program/plan/gpus/gpu_table.h"
#include "launch/program/plan/link_speed.h"
#include "launch/program/plan/simulation.h"

namespace lockstep {
namespace {

NcclGeneration generation_of(const GpuFigures& gpu) {
  constexpr int kHopper = 9, kBlackwell = 10;
  if (gpu.capability.major >= kBlackwell) return NcclGeneration::blackwell;
  return gpu.capability.major >= kHopper ? NcclGeneration::hopper : NcclGeneration::ampere;
}

// Sets the bandwidths in a node, and returns their source.
std::string set_in_node(NcclLinks& links, const GpuFigures& gpu, const SimulationFlags& flags) {
  constexpr double kGigabyte = 1e9;
  if (!flags.node_link.empty()) {
    const LinkSpeed link = parse_link_speed(flags.node_link, "--node-link");
    links.ring_bytes_per_second = link.bytes_per_second;
    return link.latency_seconds ? "as given; its latency is not used, because NCCL's model has its own"
                                : "as given";
  }
  if (gpu.ring_gigabytes_per_second == 0) {
    throw UsageError(fmt::format(
        "--gpu {}: no bandwidth between GPUs of a node was found for it; set the one that nccl-tests "
        "prints as busbw, as in --node-link 20GB/s",
        gpu.name));
  }
  links.ring_bytes_per_second = kGigabyte * gpu.ring_gigabytes_per_second;
  links.nvls_bytes_per_second = kGigabyte * gpu.nvls_gigabytes_per_second;
  return fmt::format("published for {} ({}){}", gpu.name, gpu.links_from,
                     flags.gpus.empty() ? ", which is assumed" : "");
}

}  // namespace

GpuLinks gpu_links(const SimulationFlags& flags) {
  const std::vector<std::string> assumed = {"h100"};
  const GpuFigures& gpu = *find_gpus(flags.gpus.empty() ? assumed : flags.gpus).front();
  GpuLinks result{.links = {.generation = generation_of(gpu)}};
  NcclLinks& links = result.links;
  if (flags.ranks > flags.nodes) {
    const std::string from = set_in_node(links, gpu, flags);
    const std::string nvls = links.nvls_bytes_per_second > 0
                                 ? fmt::format("NVLS {}", speed_text(links.nvls_bytes_per_second))
                                 : "no NVLS";
    result.from.push_back(fmt::format("in a node, bus bandwidth of NCCL: ring {}, {}, {}",
                                      speed_text(links.ring_bytes_per_second), nvls, from));
  }
  if (flags.nodes > 1) {
    const LinkSpeed link = parse_link_speed(flags.link, "--link");
    links.rails = link.rails;
    links.rail_bytes_per_second = link.bytes_per_second / link.rails;
    links.latency_seconds = link.latency_seconds.value_or(0);
    std::string from =
        fmt::format("between nodes: {} of {}, as given; NCCL plans with 96 % of it",
                    counted(link.rails, "network card"), speed_text(links.rail_bytes_per_second));
    if (const int gpus = flags.ranks / flags.nodes; link.rails > gpus)
      from += fmt::format("; one card for each GPU: {} used", gpus);
    if (links.latency_seconds > 0)
      from += fmt::format(", {} more for each message", time_text(links.latency_seconds));
    result.from.push_back(std::move(from));
  }
  if (flags.gpus.empty())
    result.from.emplace_back("limits of NCCL's channels: those of h100, which is assumed; set --gpu");
  result.from.emplace_back(
      "all-reduce: NCCL 2.28.9's own model of ring, tree and NVLS with its latencies, not measured here");
  return result;
}

}  // namespace lockstep
