// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node_sums.h"

#include <algorithm>

#include "core/device.h"

namespace lockstep {
namespace {

constexpr std::size_t kSumBytes = std::size_t{4} << 20;

}  // namespace

NodeSums::NodeSums(std::span<const PartialSum> terms, int node, int nodes) {
  std::vector<std::size_t> of_node(static_cast<std::size_t>(nodes), 0);
  std::size_t first = 0;
  for (const PartialSum& term : terms) {
    ++of_node[static_cast<std::size_t>(term.node)];
    const auto ranks = static_cast<std::size_t>(term.end - term.begin);
    if (ranks > 1) adds_ = true;
    if (term.node != node) continue;
    ranges_.push_back({.first = first, .ranks = ranks});
    first += ranks;
  }
  term_bytes_ = align_up(kSumBytes / std::ranges::max(of_node));
  if (!adds_) return;
  sums_ = Buffer(ranges_.size() * term_bytes_, Device{});
  for (std::size_t k = 0; k < ranges_.size(); ++k) terms_.push_back(sums_.data() + k * term_bytes_);
}

std::span<const void* const> NodeSums::add(std::span<const void* const> sources, std::size_t count,
                                           DType dtype, ReduceOp op) {
  if (!adds_) return sources;
  for (std::size_t k = 0; k < ranges_.size(); ++k) {
    void* sum = sums_.data() + k * term_bytes_;
    reduce_along_tree(sources.subspan(ranges_[k].first, ranges_[k].ranks), {&sum, 1}, count,
                      {.from = dtype, .to = type_of(dtype), .op = op});
  }
  return terms_;
}

}  // namespace lockstep
