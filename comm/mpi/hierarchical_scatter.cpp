// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "comm/mpi/hierarchical_collectives.h"
#include "comm/mpi/rounds.h"
#include "core/timeline.h"

namespace lockstep {

// A reduce_scatter; sizes are in elements.
struct HierarchicalCollectives::Scatter {
  const std::byte* send;
  std::byte* recv;
  std::size_t count;    // of each rank's share
  std::size_t most;     // of a share in a round
  std::size_t element;  // bytes of an element
  DType dtype;
  DType term;  // the type in which partial sums are sent
  ReduceOp op;
  int parts;

  std::size_t in_round(std::size_t round) const { return std::min(most, count - round * most); }
  // The partition of what `ranks` ranks of a node get in a round.
  Partition partition(std::size_t round, std::size_t ranks) const {
    return Partition::even(ranks * in_round(round), parts, element);
  }
};

// A round's data is staged before a barrier, sent and summed after it, and its sums are copied out after the
// next one.
std::int64_t HierarchicalCollectives::reduce_scatter(const void* send, void* recv, std::size_t count,
                                                     DType dtype, ReduceOp op) {
  const std::size_t element = size_of(dtype);
  const Scatter scatter{.send = static_cast<const std::byte*>(send),
                        .recv = static_cast<std::byte*>(recv),
                        .count = count,
                        .most = scatter_bytes_ / element,
                        .element = element,
                        .dtype = dtype,
                        .term = adds_ ? accumulator_of(dtype) : dtype,
                        .op = op,
                        .parts = parts_};
  const std::size_t rounds = rounds_of(count, scatter.most);
  std::int64_t met_ns = 0;
  source_ = group_.find(send, count * element * node_of_.size());
  for (std::size_t step = 0; step < rounds + 2; ++step) {
    const bool on_the_wire = step >= 1 && step <= rounds && drives();
    if (on_the_wire) begin_sums(scatter, step - 1);
    if (step < rounds) stage(scatter, step);
    if (step >= 2) take_sums(scatter, step - 2);
    if (on_the_wire) finish_sums(scatter, step - 1);
    if (step == 0) {
      meet({.kind = CollectiveKind::reduce_scatter, .dtype = dtype, .op = op, .count = count});
    } else if (step <= rounds) {
      group_.barrier();
    }
    if (step == 1) met_ns = now_ns();  // the ranks that drive parts have heard from all nodes
  }
  round_ += rounds;
  return met_ns;
}

void HierarchicalCollectives::stage(const Scatter& scatter, std::size_t round) {
  const std::size_t at = round * scatter.most;
  const std::size_t elements = scatter.in_round(round);
  for (std::size_t rank = 0; rank < node_of_.size() && stages(); ++rank) {
    std::memcpy(staged(local_, round) + rank * scatter_bytes_,
                scatter.send + (rank * scatter.count + at) * scatter.element, elements * scatter.element);
  }
  std::size_t read_by_others = node_of_.size() * elements;
  for (int node = 0; node < nodes_ && drives(); ++node)
    read_by_others -= scatter.partition(round, ranks_on(node)).size(part_);
  shared_bytes_ += read_by_others * scatter.element;
}

const std::byte* HierarchicalCollectives::term(const Scatter& scatter, std::size_t round, int node,
                                               std::size_t k, std::byte* sum) {
  const Range term = own_terms_[k];
  const std::size_t each = scatter.in_round(round);
  const Partition partition = scatter.partition(round, ranks_on(node));
  const std::byte* found = sum;
  for_each_stretch(
      partition.begin(part_), partition.begin(part_ + 1), each,
      [&](int local, std::size_t at, std::size_t elements, std::size_t before) {
        const auto rank = static_cast<std::size_t>(ranks_of(node)[static_cast<std::size_t>(local)]);
        sources_.clear();
        for (std::size_t from = term.first; from < term.first + term.ranks; ++from) {
          sources_.push_back(source(static_cast<int>(from), round,
                                    (rank * scatter.count + round * scatter.most + at) * scatter.element,
                                    rank * scatter_bytes_ + at * scatter.element));
        }
        const bool whole = elements == partition.size(part_);
        if (term.ranks == 1 && whole && scatter.term == scatter.dtype) {
          found = static_cast<const std::byte*>(sources_[0]);
          return;
        }
        void* to = sum + before * size_of(scatter.term);
        reduce_along_tree(sources_, {&to, 1}, elements,
                          {.from = scatter.dtype, .to = scatter.term, .op = scatter.op});
      });
  return found;
}

// sums_ holds other nodes' terms of this rank's part, then this node's terms of it, then this node's terms of
// other nodes' parts.
void HierarchicalCollectives::begin_sums(const Scatter& scatter, std::size_t round) {
  const std::size_t own = own_terms_.size();
  const std::size_t foreign = terms_.size() - own;
  const std::size_t element = size_of(scatter.term);
  sum_bytes_ = align_up(scatter.partition(0, largest_node_).part * element);
  const std::size_t needed = (foreign + own * static_cast<std::size_t>(nodes_)) * sum_bytes_;
  if (sums_.bytes() < needed) {
    sums_ = Buffer(needed, Device{});
    memory_bytes_ = needed;
  }
  const std::size_t mine = scatter.partition(round, ranks_on(node_)).size(part_);
  std::size_t place = 0;
  for (std::size_t k = 0; k < terms_.size(); ++k) {
    if (terms_[k].node == node_) continue;
    term_sources_[k] = sums_.data() + place++ * sum_bytes_;
    messages_.receive(const_cast<void*>(term_sources_[k]), mine * element, terms_[k].node);
  }
  place += own;
  for_each_other_node([&](int node) {
    const std::size_t theirs = scatter.partition(round, ranks_on(node)).size(part_);
    for (std::size_t k = 0; k < own; ++k) {
      messages_.send(term(scatter, round, node, k, sums_.data() + place++ * sum_bytes_), theirs * element,
                     node);
      messages_.move_on();
    }
  });
  place = foreign;
  std::size_t k = 0;
  for (std::size_t i = 0; i < terms_.size(); ++i) {
    if (terms_[i].node != node_) continue;
    term_sources_[i] = term(scatter, round, node_, k++, sums_.data() + place++ * sum_bytes_);
    messages_.move_on();
  }
}

void HierarchicalCollectives::finish_sums(const Scatter& scatter, std::size_t round) {
  messages_.finish();
  const Partition partition = scatter.partition(round, ranks_on(node_));
  const std::size_t mine = partition.size(part_);
  void* sum = arrived(local_, round);
  reduce_along_tree(term_sources_, {&sum, 1}, mine,
                    {.from = scatter.term, .to = scatter.dtype, .op = scatter.op, .ends = ends_});
  for_each_stretch(partition.begin(part_), partition.begin(part_ + 1), scatter.in_round(round),
                   [&](int local, std::size_t, std::size_t elements, std::size_t) {
                     if (local != local_) shared_bytes_ += elements * scatter.element;
                   });
}

void HierarchicalCollectives::take_sums(const Scatter& scatter, std::size_t round) {
  const std::size_t each = scatter.in_round(round);
  const Partition partition = scatter.partition(round, ranks_on(node_));
  const std::size_t begin = static_cast<std::size_t>(local_) * each;
  std::byte* const to = scatter.recv + round * scatter.most * scatter.element;
  for_each_stretch(begin, begin + each, partition.part,
                   [&](int part, std::size_t at, std::size_t elements, std::size_t before) {
                     std::memcpy(to + before * scatter.element, arrived(part, round) + at * scatter.element,
                                 elements * scatter.element);
                   });
}

}  // namespace lockstep
