// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/not_finite_search.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/text/text.h"

namespace lockstep {

NotFiniteSearch::NotFiniteSearch(Network& network, Stream& stream)
    : network_(network), stream_(stream), flag_(sizeof(std::int32_t), network.device()) {}

bool NotFiniteSearch::are_finite(std::span<const FlatRange> ranges) {
  auto* flag = reinterpret_cast<std::int32_t*>(flag_.data());
  Write write = Write::overwrite;
  for (const FlatRange& range : ranges) {
    network_.backend().all_finite(stream_, {.type = range.type,
                                            .count = range.count(),
                                            .values = range.data,
                                            .finite = flag,
                                            .write = std::exchange(write, Write::accumulate)});
  }
  std::int32_t finite = 0;
  stream_.copy(&finite, flag, sizeof(finite));
  stream_.synchronize();
  return finite != 0;
}

// A layer without a name is described by the last named one before it.
std::string NotFiniteSearch::layer_name(std::size_t node) const {
  std::size_t named = node;
  while (named > 0 && network_.nodes()[named].name.empty()) --named;
  const std::string& name = network_.nodes()[named].name;
  if (named == node && !name.empty()) return name;
  return name.empty() ? fmt::format("layer {}", node + 1) : fmt::format("layer {}, after {}", node + 1, name);
}

void NotFiniteSearch::check_state() {
  struct Visitor final : StateVisitor {
    explicit Visitor(NotFiniteSearch& owner) : search(owner) {}
    bool writes() const override { return false; }
    void tensor(const StateTensor& tensor, StateScope scope) override {
      if (!search.found_.empty() || scope != StateScope::replicated) return;
      if (search.is_finite({.end = tensor.layout.physical_elements(), .data = tensor.value})) return;
      search.found_ = (tensor.is_statistic ? "statistic " : "parameter ") + tensor.name;
    }
    void value(const std::string&, StateScope, StateValue) override {}
    NotFiniteSearch& search;
  };
  std::vector<FlatRange> all;
  for (const std::span<float> part : {network_.values(), network_.frozen(), network_.evaluation_statistics()})
    all.push_back({.end = static_cast<std::int64_t>(part.size()), .data = part.data()});
  if (are_finite(all)) return;  // one check for all tensors
  Visitor visitor(*this);
  network_.visit_state(visitor);
}

void NotFiniteSearch::layer_ran(std::size_t node, Direction direction, std::int64_t, std::int64_t) {
  if (!found_.empty() || direction == Direction::recompute) return;
  const std::vector<FlatRange> made = network_.made_by(node, direction);
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (is_finite(made[i])) continue;
    if (direction == Direction::forward)
      found_ = "the activations of " + layer_name(node);
    else if (direction == Direction::backward_inputs)
      found_ = "the gradient of the activations before " + layer_name(node);
    else
      found_ = "the gradient of " + network_.parameters()[network_.parameters_of(node)[i]].name;
    return;
  }
}

void NotFiniteSearch::check_loss(double loss) {
  if (found_.empty() && !std::isfinite(loss)) found_ = "the loss";
}

std::string not_finite_state(Network& network) {
  Stream stream(network.device(), StreamUse::compute);
  NotFiniteSearch search(network, stream);
  search.check_state();
  return search.found();
}

std::string describe_origin(Communicator& host, const std::string& found) {
  const std::vector<std::string> all = gather_texts(host, found);
  std::vector<std::string> places;
  for (std::size_t first = 0; first < all.size(); ++first) {
    const auto here = all.begin() + static_cast<std::ptrdiff_t>(first);
    if (here->empty() || std::find(all.begin(), here, *here) != here) continue;
    std::vector<int> ranks;
    for (std::size_t rank = first; rank < all.size(); ++rank)
      if (all[rank] == all[first]) ranks.push_back(static_cast<int>(rank));
    places.push_back(fmt::format("on {} in {}", named_ranks(ranks), all[first]));
  }
  return places.empty() ? "" : fmt::format("; the origin is {}", fmt::join(places, ", "));
}

}  // namespace lockstep
