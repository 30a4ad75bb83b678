// SPDX-License-Identifier: Apache-2.0
#include "comm/sums/halving_schedule.h"

#include <algorithm>
#include <bit>

namespace lockstep {
namespace {

constexpr std::size_t kElementsOfLine = 16;

int log2_of(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

int power_up_to(int number) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(number))); }

}  // namespace

std::vector<HalvingStep> halving_schedule(int node, int nodes) {
  using Kind = HalvingStep::Kind;
  std::vector<HalvingStep> steps;
  for (int width = 1; width < nodes; width *= 2) {  // of the left subtree
    const int middle = node / (2 * width) * 2 * width + width;
    const int right = std::clamp(nodes - middle, 0, width);
    const int halvings = log2_of(width);
    const bool lower = node < middle;
    if (right == 0) continue;
    if (right == width) {
      steps.push_back({.kind = Kind::exchange,
                       .lower = lower,
                       .leaf = width == 1,
                       .halvings = halvings,
                       .peer = lower ? node + width : node - width});
      continue;
    }
    const int holders = power_up_to(right);  // ranks that hold the right subtree's sum, a stretch each
    HalvingStep step{.lower = lower, .leaf = right == 1};
    if (lower) {
      step.kind = Kind::take;
      step.halvings = halvings;
      step.peer = middle + (node - (middle - width)) % holders;
    } else {
      step.kind = Kind::give;
      step.halvings = log2_of(holders);
      step.peer = node - width;
      step.stride = holders;
      step.peers = width / holders;
    }
    steps.push_back(step);
    if (!lower) break;  // it has given its data away
  }
  return steps;
}

Stretch halved(int node, int halvings, std::size_t count) {
  Stretch held{.begin = 0, .end = count};
  for (int bit = 0; bit < halvings; ++bit) {
    const std::size_t half = (held.size() / 2 + kElementsOfLine - 1) / kElementsOfLine * kElementsOfLine;
    const std::size_t middle = std::min(held.begin + half, held.end);
    ((node >> bit) & 1 ? held.begin : held.end) = middle;
  }
  return held;
}

Stretch sent_to(const HalvingStep& step, int k, std::size_t count) {
  const int peer = step.peer + k * step.stride;
  switch (step.kind) {
    case HalvingStep::Kind::exchange:
      return halved(peer, step.halvings + 1, count);
    case HalvingStep::Kind::give:
      return halved(peer, step.halvings + log2_of(step.peers), count);
    case HalvingStep::Kind::take:
      break;
  }
  return {};
}

Stretch received_by(const HalvingStep& step, int node, std::size_t count) {
  switch (step.kind) {
    case HalvingStep::Kind::exchange:
      return halved(node, step.halvings + 1, count);
    case HalvingStep::Kind::take:
      return halved(node, step.halvings, count);
    case HalvingStep::Kind::give:
      break;
  }
  return {};
}

bool one_term_of_each(std::span<const PartialSum> terms, int nodes) {
  if (terms.empty() || terms.size() != static_cast<std::size_t>(nodes)) return false;
  const int width = terms[0].end;
  if (!std::has_single_bit(static_cast<unsigned>(width))) return terms.size() == 1;
  for (int k = 0; k < nodes; ++k) {
    const PartialSum& term = terms[static_cast<std::size_t>(k)];
    const bool last = k + 1 == nodes;
    if (term.node != k || term.begin != k * width) return false;
    if (last ? term.end > term.begin + width : term.end != term.begin + width) return false;
  }
  return true;
}

}  // namespace lockstep
