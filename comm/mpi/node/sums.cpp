// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node/sums.h"

#include <algorithm>

#include "core/device.h"

namespace lockstep {

NodeSums::NodeSums(std::span<const PartialSum> terms, int node) {
  std::size_t first = 0;
  for (const PartialSum& term : terms) {
    const auto ranks = static_cast<std::size_t>(term.end - term.begin);
    if (ranks > 1) adds_ = true;
    if (term.node != node) continue;
    ranges_.push_back({.first = first, .ranks = ranks});
    first += ranks;
  }
  sources_.resize(first);
  terms_.resize(ranges_.size());
}

void NodeSums::prepare(DType dtype, std::size_t places, std::size_t place_bytes) {
  if (type_of(dtype) == dtype) return;
  place_bytes_ = align_up(place_bytes);
  const std::size_t bytes = places * ranges_.size() * place_bytes_;
  if (sums_.bytes() < bytes) sums_ = Buffer(bytes, Device{});
}

std::span<const void* const> NodeSums::add(std::span<void* const> data, std::size_t count, DType dtype,
                                           ReduceOp op, std::size_t place) {
  std::ranges::copy(data, sources_.begin());
  if (!adds_) return sources_;
  const Reduction reduction{.from = dtype, .to = type_of(dtype), .op = op};
  for (std::size_t k = 0; k < ranges_.size(); ++k) {
    const auto [first, ranks] = ranges_[k];
    const bool in_place = reduction.to == dtype;
    void* sum = in_place ? data[first] : sums_.data() + (place * ranges_.size() + k) * place_bytes_;
    terms_[k] = sum;
    if (in_place && ranks == 1) continue;
    reduce_along_tree(std::span(sources_).subspan(first, ranks), {&sum, 1}, count, reduction);
  }
  return terms_;
}

}  // namespace lockstep
