// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node/collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/sums/reduce.h"
#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

std::size_t round_bytes_for(int ranks) {
  constexpr std::size_t kRoundBytes = std::size_t{64} << 10;  // stays in a core's cache
  return std::max(kRoundBytes, static_cast<std::size_t>(ranks) * kAlignment);
}

// The bytes of a round's sum that each rank computes.
std::size_t part_bytes_for(int ranks) { return Partition::even(round_bytes_for(ranks), ranks, 1).part; }

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

}  // namespace

// An all_reduce in chunks, one for each round.
struct NodeCollectives::Sum {
  std::byte* data;
  std::size_t count;
  std::size_t most;  // elements of a chunk
  std::size_t element;
  Reduction reduction;
  int ranks;

  Partition partition(std::size_t chunk) const {
    return Partition::even(std::min(most, count - chunk * most), ranks, element);
  }
  std::byte* at(std::size_t chunk) const { return data + chunk * most * element; }
};

NodeCollectives::NodeCollectives(NodeGroup& group)
    : group_(group),
      rank_(group.rank()),
      size_(group.size()),
      round_bytes_(round_bytes_for(size_)),
      seen_(static_cast<std::size_t>(size_)),
      sources_(seen_.size()) {}

std::size_t NodeCollectives::staging_bytes(int ranks) {
  return 2 * (round_bytes_for(ranks) + part_bytes_for(ranks));
}

std::byte* NodeCollectives::summed(int rank, std::size_t round) const {
  return group_.staging(rank) + 2 * round_bytes_ + round % 2 * part_bytes_for(size_);
}

std::int64_t NodeCollectives::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  const std::size_t bytes = count * size_of(dtype);
  const Collective collective{
      .kind = CollectiveKind::all_reduce, .dtype = dtype, .op = op, .recv = data, .count = count};
  if (bytes > kSmallBytes) return all_reduce_in_rounds(collective);
  std::memcpy(staged(rank_, round_), data, bytes);
  const std::int64_t met_ns = meet(collective);
  for (int rank = 0; rank < size_; ++rank)
    sources_[static_cast<std::size_t>(rank)] = rank == rank_ ? data : staged(rank, round_);
  reduce_along_tree(sources_, {&data, 1}, count, {.from = dtype, .to = dtype, .op = op});
  ++round_;
  sent_bytes_ += to_others(bytes);
  return met_ns;
}

// Between two barriers each rank stages a chunk, sums its part of the one before, and copies the other parts
// of the one before that.
std::int64_t NodeCollectives::all_reduce_in_rounds(const Collective& collective) {
  const std::size_t element = size_of(collective.dtype);
  const Sum sum{
      .data = static_cast<std::byte*>(collective.recv),
      .count = collective.count,
      .most = round_bytes_ / element,
      .element = element,
      .reduction = {.from = collective.dtype, .to = collective.dtype, .op = collective.op},
      .ranks = size_,
  };
  const std::size_t chunks = (sum.count + sum.most - 1) / sum.most;
  std::int64_t met_ns = 0;
  for (std::size_t step = 0; step < chunks + 2; ++step) {
    if (step < chunks) stage(sum, step);
    if (step >= 1 && step <= chunks) add_part(sum, step - 1);
    if (step >= 2) take_parts(sum, step - 2);
    if (step == 0) {
      met_ns = meet(collective);
    } else if (step <= chunks) {
      group_.barrier();
    }
  }
  round_ += chunks;
  return met_ns;
}

// Stages a chunk without this rank's own part, which no other rank reads.
void NodeCollectives::stage(const Sum& sum, std::size_t chunk) {
  const Partition partition = sum.partition(chunk);
  const std::size_t begin = partition.begin(rank_) * sum.element;
  const std::size_t end = partition.begin(rank_ + 1) * sum.element;
  const std::size_t all = partition.count * sum.element;
  std::byte* to = staged(rank_, round_ + chunk);
  if (begin > 0) std::memcpy(to, sum.at(chunk), begin);
  if (all > end) std::memcpy(to + end, sum.at(chunk) + end, all - end);
  sent_bytes_ += all - (end - begin) + to_others(end - begin);
}

void NodeCollectives::add_part(const Sum& sum, std::size_t chunk) {
  const Partition partition = sum.partition(chunk);
  const std::size_t begin = partition.begin(rank_) * sum.element;
  void* own = sum.at(chunk) + begin;
  for (int rank = 0; rank < size_; ++rank)
    sources_[static_cast<std::size_t>(rank)] = rank == rank_ ? own : staged(rank, round_ + chunk) + begin;
  void* const destinations[] = {own, summed(rank_, round_ + chunk)};
  reduce_along_tree(sources_, destinations, partition.size(rank_), sum.reduction);
}

void NodeCollectives::take_parts(const Sum& sum, std::size_t chunk) {
  const Partition partition = sum.partition(chunk);
  for_each_other([&](int rank) {
    const std::size_t bytes = partition.size(rank) * sum.element;
    if (bytes == 0) return;
    std::memcpy(sum.at(chunk) + partition.begin(rank) * sum.element, summed(rank, round_ + chunk), bytes);
  });
}

std::size_t NodeCollectives::place_bytes() const {
  return round_bytes_ / static_cast<std::size_t>(size_) / kAlignment * kAlignment;
}

void NodeCollectives::stage_parts(const void* send, std::size_t part_bytes, std::size_t at,
                                  std::size_t bytes) {
  for_each_other([&](int to) {
    const auto of = static_cast<std::size_t>(to);
    std::memcpy(staged(rank_, round_) + of * place_bytes(), bytes_of(send) + of * part_bytes + at, bytes);
  });
}

const std::byte* NodeCollectives::part_of(int rank, const void* own, std::size_t part_bytes,
                                          std::size_t at) const {
  const auto part = static_cast<std::size_t>(rank_);
  const std::byte* seen = seen_[static_cast<std::size_t>(rank)];
  if (rank == rank_) return bytes_of(own) + part * part_bytes + at;
  return seen != nullptr ? seen + part * part_bytes + at : staged(rank, round_) + part * place_bytes();
}

std::int64_t NodeCollectives::reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype,
                                             ReduceOp op) {
  const std::size_t element = size_of(dtype);
  const std::size_t share = count * element;
  const NodeGroup::Source source = find(send, share * static_cast<std::size_t>(size_));
  const bool stages = source.window == NodeGroup::Source::kNone;
  std::int64_t met_ns = 0;
  for (std::size_t at = 0; at < share;) {
    std::size_t bytes = std::min(place_bytes(), share - at);
    if (stages) stage_parts(send, share, at, bytes);
    if (at > 0) {
      group_.barrier();
    } else {
      met_ns =
          meet({.kind = CollectiveKind::reduce_scatter, .dtype = dtype, .op = op, .count = count}, source);
    }
    if (std::ranges::count(seen_, nullptr) == 0) bytes = share - at;
    for (int rank = 0; rank < size_; ++rank)
      sources_[static_cast<std::size_t>(rank)] = part_of(rank, send, share, at);
    void* sum = static_cast<std::byte*>(recv) + at;
    reduce_along_tree(sources_, {&sum, 1}, bytes / element, {.from = dtype, .to = dtype, .op = op});
    at += bytes;
    ++round_;
  }
  leave();
  sent_bytes_ += to_others(share);
  return met_ns;
}

std::int64_t NodeCollectives::all_gather(const void* send, void* recv, std::size_t count, DType dtype) {
  const std::size_t share = count * size_of(dtype);
  auto* all = static_cast<std::byte*>(recv);
  std::byte* own = all + static_cast<std::size_t>(rank_) * share;
  const NodeGroup::Source source = find(send, share);
  const bool stages = source.window == NodeGroup::Source::kNone;
  std::int64_t met_ns = 0;
  for (std::size_t at = 0; at < share;) {
    std::size_t bytes = std::min(round_bytes_, share - at);
    if (stages) std::memcpy(staged(rank_, round_), bytes_of(send) + at, bytes);
    if (at > 0) {
      group_.barrier();
    } else {
      met_ns = meet({.kind = CollectiveKind::all_gather, .dtype = dtype, .count = count}, source);
    }
    if (std::ranges::count(seen_, nullptr) == 0) bytes = share - at;
    for_each_other([&](int rank) {
      const auto of = static_cast<std::size_t>(rank);
      const std::byte* from = seen_[of] != nullptr ? seen_[of] + at : staged(rank, round_);
      std::memcpy(all + of * share + at, from, bytes);
    });
    at += bytes;
    ++round_;
  }
  if (own != send) std::memcpy(own, send, share);
  leave();
  sent_bytes_ += to_others(share);
  return met_ns;
}

std::int64_t NodeCollectives::all_to_all(const void* send, void* recv, std::size_t count, DType dtype) {
  const std::size_t block = count * size_of(dtype);
  const NodeGroup::Source source = find(send, block * static_cast<std::size_t>(size_));
  const bool stages = source.window == NodeGroup::Source::kNone;
  const auto take = [&](int from, std::size_t at, std::size_t bytes) {
    std::byte* to = static_cast<std::byte*>(recv) + static_cast<std::size_t>(from) * block + at;
    std::memcpy(to, part_of(from, send, block, at), bytes);
  };
  std::int64_t met_ns = 0;
  for (std::size_t at = 0; at < block;) {
    std::size_t bytes = std::min(place_bytes(), block - at);
    if (stages) stage_parts(send, block, at, bytes);
    if (at > 0) {
      group_.barrier();
    } else {
      met_ns = meet({.kind = CollectiveKind::all_to_all, .dtype = dtype, .count = count}, source);
    }
    if (std::ranges::count(seen_, nullptr) == 0) bytes = block - at;
    for_each_other([&](int from) { take(from, at, bytes); });
    at += bytes;
    ++round_;
  }
  take(rank_, 0, block);
  leave();
  sent_bytes_ += to_others(block);
  return met_ns;
}

std::int64_t NodeCollectives::broadcast(void* data, std::size_t count, DType dtype, int root) {
  const std::size_t all = count * size_of(dtype);
  auto* own = static_cast<std::byte*>(data);
  const bool sends = rank_ == root;
  const NodeGroup::Source source = sends ? find(data, all) : NodeGroup::Source{};
  const bool stages = sends && source.window == NodeGroup::Source::kNone;
  std::int64_t met_ns = 0;
  for (std::size_t at = 0; at < all;) {
    std::size_t bytes = std::min(round_bytes_, all - at);
    if (stages) std::memcpy(staged(root, round_), own + at, bytes);
    if (at > 0) {
      group_.barrier();
    } else {
      met_ns =
          meet({.kind = CollectiveKind::broadcast, .dtype = dtype, .root = root, .count = count}, source);
    }
    const std::byte* seen = seen_[static_cast<std::size_t>(root)];
    if (seen != nullptr) bytes = all - at;
    if (!sends) std::memcpy(own + at, seen != nullptr ? seen + at : staged(root, round_), bytes);
    at += bytes;
    ++round_;
  }
  leave();
  if (sends) sent_bytes_ += to_others(all);
  return met_ns;
}

std::int64_t NodeCollectives::barrier() { return meet({.kind = CollectiveKind::barrier}); }

void NodeCollectives::leave() {
  if (std::ranges::count(seen_, nullptr) < size_) group_.barrier();
}

}  // namespace lockstep
