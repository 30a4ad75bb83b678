// SPDX-License-Identifier: Apache-2.0
#include "models/recompute_choice.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "models/work.h"

namespace lockstep {
namespace {

// Nominal for all devices: only the order of the candidates depends on it.
constexpr double kOperationsPerByte = 30;

// Every candidate once. Segments of more than half of the layers would keep almost everything.
std::vector<Recompute> candidates(const Graph& graph) {
  std::vector<Recompute> found = {Recompute::nothing};
  if (!graph.blocks().empty()) found.push_back(Recompute::blocks);
  constexpr std::int64_t kShort = 32;  // longer segments: one length for each number of them
  const auto layers = static_cast<std::int64_t>(graph.layers().size());
  for (std::int64_t segments = 2; segments * kShort < layers; ++segments) {
    const Recompute next = Recompute::every((layers + segments - 1) / segments);
    if (next != found.back()) found.push_back(next);
  }
  for (std::int64_t length = std::min(kShort, (layers + 1) / 2); length >= 2; --length)
    found.push_back(Recompute::every(length));
  return found;
}

// The work of the recomputed layers, in bytes of memory traffic.
double additional_work(const Graph& graph, const NetworkPlan& plan, Precision precision) {
  double work = 0;
  for (const PlannedNode& node : plan.nodes) {
    if (!node.recomputed || node.layer_index < 0) continue;
    const Layer& layer = graph.layers()[static_cast<std::size_t>(node.layer_index)];
    work += static_cast<double>(forward_bytes(graph, layer, precision)) +
            static_cast<double>(flops_of(graph, layer).forward) / kOperationsPerByte;
  }
  return work;
}

}  // namespace

std::string described(const Recompute& recompute) {
  if (recompute.scope == Recompute::Scope::blocks) return "of blocks";
  if (recompute.scope != Recompute::Scope::segments) return "of nothing";
  return fmt::format("of segments of {} layers", recompute.layers);
}

Recompute choose_recompute(const Graph& graph, NetworkPlan& plan, const RecomputeLimits& limits) {
  struct Candidate {
    Recompute recompute;
    std::size_t bytes;
    double work;
  };
  std::optional<Candidate> best;
  for (const Recompute& recompute : candidates(graph)) {
    plan_memory(plan, recompute, limits.sharing);
    const Candidate next{.recompute = recompute,
                         .bytes = plan.arena.bytes,
                         .work = additional_work(graph, plan, limits.precision)};
    if (next.work == 0 && next.bytes <= limits.arena_bytes) return next.recompute;
    const auto better = [&](const Candidate& than) {
      const bool fits = next.bytes <= limits.arena_bytes, other = than.bytes <= limits.arena_bytes;
      if (fits != other) return fits;
      const bool cheaper = next.work < than.work;
      if (fits) return cheaper;
      return next.bytes != than.bytes ? next.bytes < than.bytes : cheaper;
    };
    if (!best || better(*best)) best = next;
  }
  return best->recompute;
}

}  // namespace lockstep
