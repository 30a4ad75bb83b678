// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/exchange.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{4} << 20;
// Up to this size and this number of ranks, one round of messages to all is faster than several.
constexpr std::size_t kSmallBytes = std::size_t{8} << 10;
constexpr int kMostForSmall = 16;
// With more ranks messages to all are too many to measure.
constexpr int kMostToProbe = 64;
// Sizes that are measured to choose an algorithm: for sums up to the first, and for larger ones.
constexpr std::size_t kSmallProbeBytes = std::size_t{32} << 10;
constexpr std::size_t kLargeProbeBytes = std::size_t{512} << 10;
constexpr int kTag = 0;  // messages of one pair of ranks never overtake one another
constexpr int kFirstPieceTag = 1;
constexpr int kFirstHalvingTag = 1024;
constexpr int kBlockTag = 2048;

// The ends of a rank with one term, which the result replaces.
class PlainEnds final : public PieceEnds {
 public:
  PlainEnds(const void* data, std::size_t element)
      : data_(static_cast<const std::byte*>(data)), element_(element) {}
  std::span<const void* const> bring(std::size_t begin, std::size_t, std::size_t) override {
    term_ = data_ + begin * element_;
    return {&term_, 1};
  }
  void deliver(std::size_t, std::size_t) override {}

 private:
  const std::byte* data_;
  std::size_t element_;
  const void* term_ = nullptr;
};

}  // namespace

MpiExchange::MpiExchange(MPI_Comm communicator, std::span<const PartialSum> terms, Link link,
                         MpiSession& session, const WireShape& shape, const WaitPlace& place)
    : communicator_(communicator),
      terms_(terms.begin(), terms.end()),
      link_(link),
      session_(session),
      shape_(shape),
      place_(place),
      blocks_(communicator, link, kBlockTag, place) {
  MPI_CHECK(MPI_Comm_rank(communicator_, &rank_));
  MPI_CHECK(MPI_Comm_size(communicator_, &size_));
  halves_ = link == Link::wire && one_term_of_each(terms_, size_);
  const auto ranks = static_cast<std::size_t>(std::min(size_, kMostForSmall));
  staging_ = Buffer(ranks * kSmallBytes, Device{});
  staging_bytes_ = staging_.bytes();
  sources_.resize(ranks);
  requests_.reserve(2 * ranks);
  if (halves_) {
    halving();
  } else {
    pieces();
  }
}

PieceFlow& MpiExchange::pieces() {
  if (!pieces_) {
    pieces_.emplace(communicator_, terms_, link_, kFirstPieceTag, place_);
    staging_bytes_ += pieces_->memory_bytes();
  }
  return *pieces_;
}

HalvingFlow& MpiExchange::halving() {
  if (!halving_) {
    halving_.emplace(communicator_, kFirstHalvingTag, place_);
    staging_bytes_ += halving_->memory_bytes();
  }
  return *halving_;
}

std::uint64_t MpiExchange::sent_bytes() const {
  return sent_bytes_ - probe_bytes_ + blocks_.sent_bytes() + (pieces_ ? pieces_->sent_bytes() : 0) +
         (halving_ ? halving_->sent_bytes() : 0);
}

AllReduceWay MpiExchange::way_of(std::size_t bytes) {
  using Way = AllReduceWay;
  const Way way = session_.between_nodes;
  if (link_ == Link::memory) return Way::direct;
  if (way == Way::mpi) return Way::mpi;
  if (!halves_ || way == Way::direct) return Way::direct;
  if (way == Way::halving) return Way::halving;
  return halving_is_faster(bytes) ? Way::halving : Way::direct;
}

bool MpiExchange::halving_is_faster(std::size_t bytes) {
  if (size_ == 2 || size_ > kMostToProbe) return true;  // for two ranks both are the same
  // For a power of two, halving sends the same bytes to fewer ranks: its additional rounds only matter for
  // small sums.
  if (std::has_single_bit(static_cast<unsigned>(size_))) return bytes > kSmallProbeBytes;
  if (bytes <= kSmallBytes) return false;
  if (!faster_) faster_ = find_faster();
  return bytes <= kSmallProbeBytes ? faster_->halving_small : faster_->halving_large;
}

FasterWay MpiExchange::find_faster() {
  const std::uint64_t before = sent_bytes();
  std::optional<FasterWay> faster = known_to_all();
  if (!faster) {
    faster = probe();
    const std::lock_guard lock(session_.faster_mutex);
    session_.faster_ways[shape_] = *faster;
  }
  probe_bytes_ += sent_bytes() - before;
  return *faster;
}

// Ranks of different groups may know different results: a known result counts only if all ranks have one, and
// halving is chosen if all found it faster.
std::optional<FasterWay> MpiExchange::known_to_all() {
  std::array<float, 3> known = {0, 1, 1};
  {
    const std::lock_guard lock(session_.faster_mutex);
    if (const auto found = session_.faster_ways.find(shape_); found != session_.faster_ways.end()) {
      known = {1, found->second.halving_small ? 1.0f : 0.0f, found->second.halving_large ? 1.0f : 0.0f};
    }
  }
  PlainEnds ends(known.data(), sizeof(float));
  run(AllReduceWay::direct, known.size(), ends, known.data(), {.op = ReduceOp::min});
  if (known[0] == 0) return {};
  return FasterWay{.halving_small = known[1] != 0, .halving_large = known[2] != 0};
}

FasterWay MpiExchange::probe() {
  const Buffer data(kLargeProbeBytes, Device{});
  std::array<float, 4> seconds = {};
  for (int turn = 0; turn < 2; ++turn) {  // small ones twice: the first ones make connections
    seconds[0] = time_of(AllReduceWay::direct, data, kSmallProbeBytes);
    seconds[1] = time_of(AllReduceWay::halving, data, kSmallProbeBytes);
  }
  seconds[2] = time_of(AllReduceWay::direct, data, kLargeProbeBytes);
  seconds[3] = time_of(AllReduceWay::halving, data, kLargeProbeBytes);
  PlainEnds ends(seconds.data(), sizeof(float));
  run(AllReduceWay::direct, seconds.size(), ends, seconds.data(), {.op = ReduceOp::max});
  return {.halving_small = seconds[1] < seconds[0], .halving_large = seconds[3] < seconds[2]};
}

float MpiExchange::time_of(AllReduceWay way, const Buffer& data, std::size_t bytes) {
  PlainEnds ends(data.data(), sizeof(float));
  const std::int64_t begin = now_ns();
  run(way, bytes / sizeof(float), ends, data.data(), {});
  return static_cast<float>(now_ns() - begin) * 1e-9f;
}

MpiExchange::Places MpiExchange::places(std::size_t bytes) {
  if (way_of(bytes) == AllReduceWay::halving) return {HalvingFlow::places(), HalvingFlow::place_bytes()};
  return {pieces().places(), pieces().place_bytes()};
}

void MpiExchange::send(const void* data, std::size_t bytes, int to) {
  if (bytes == 0) return;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  MPI_CHECK(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, kTag, communicator_, &request));
  sent_bytes_ += bytes;
  waited_bytes_ += bytes;
}

void MpiExchange::receive(void* data, std::size_t bytes, int from) {
  if (bytes == 0) return;
  waited_bytes_ += bytes;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  MPI_CHECK(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, kTag, communicator_, &request));
}

void MpiExchange::wait() {
  wait_for(requests_, place_, "messages", link_, std::exchange(waited_bytes_, 0));
  requests_.clear();
}

std::int64_t MpiExchange::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  if (size_ == 1) return now_ns();
  const std::size_t element = size_of(dtype);
  const bool own = way_of(count * element) != AllReduceWay::mpi;
  if (own && count * element <= kSmallBytes && size_ <= kMostForSmall)
    return all_reduce_small(data, count, dtype, op);
  PlainEnds ends(data, element);
  return all_reduce(count, ends, data, {.from = dtype, .to = dtype, .op = op});
}

std::int64_t MpiExchange::all_reduce(std::size_t count, PieceEnds& ends, void* result,
                                     const Reduction& reduction) {
  return run(way_of(count * size_of(reduction.to)), count, ends, result, reduction);
}

std::int64_t MpiExchange::run(AllReduceWay way, std::size_t count, PieceEnds& ends, void* result,
                              const Reduction& reduction) {
  const std::size_t element = size_of(reduction.to);
  if (way == AllReduceWay::mpi && reduction.from == reduction.to && element == 4)
    return all_reduce_by_mpi(count, ends, result, reduction);
  if (way == AllReduceWay::halving)
    return halving().run({.count = count, .ends = &ends, .reduction = reduction, .result = result});
  const Partition partition = Partition::even(count, size_, element);
  return pieces().run({.partition = partition,
                       .element = element,
                       .ends = &ends,
                       .reduction = reduction,
                       .own = static_cast<std::byte*>(result) + partition.begin(rank_) * element,
                       .all = result});
}

std::int64_t MpiExchange::all_reduce_by_mpi(std::size_t count, PieceEnds& ends, void* result,
                                            const Reduction& reduction) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const MPI_Datatype type = reduction.to == DType::i32 ? MPI_INT32_T : MPI_FLOAT;
  const MPI_Op op = reduction.op == ReduceOp::sum   ? MPI_SUM
                    : reduction.op == ReduceOp::max ? MPI_MAX
                                                    : MPI_MIN;
  for (std::size_t at = 0; at < count; at += kMost) {
    const std::size_t elements = std::min(kMost, count - at);
    void* sum = static_cast<std::byte*>(result) + at * size_of(reduction.to);
    reduce_along_tree(ends.bring(at, elements, 0), {&sum, 1}, elements, reduction);
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    MPI_CHECK(
        MPI_Iallreduce(MPI_IN_PLACE, sum, static_cast<int>(elements), type, op, communicator_, &request));
    wait();
    // The bytes of an optimal algorithm: MPI does not report what it sends.
    sent_bytes_ += 2 * elements * size_of(reduction.to) * static_cast<std::size_t>(size_ - 1) /
                   static_cast<std::size_t>(size_);
    ends.deliver(at, elements);
  }
  return now_ns();
}

// Every rank sends all of its data to every other rank, and adds all terms in the same order.
std::int64_t MpiExchange::all_reduce_small(void* data, std::size_t count, DType dtype, ReduceOp op) {
  const std::size_t bytes = count * size_of(dtype);
  for (int rank = 0; rank < size_; ++rank) {
    void* term = rank == rank_ ? data : staging_.data() + static_cast<std::size_t>(rank) * align_up(bytes);
    if (rank != rank_) receive(term, bytes, rank);
    sources_[static_cast<std::size_t>(rank)] = term;
  }
  for (int k = 1; k < size_; ++k) send(data, bytes, (rank_ + k) % size_);
  wait();
  const std::int64_t met_ns = now_ns();
  reduce_along_tree(sources_, {&data, 1}, count, {.from = dtype, .to = dtype, .op = op});
  return met_ns;
}

std::int64_t MpiExchange::reduce_scatter(const Partition& partition, std::span<const void* const> own,
                                         void* recv, const Reduction& reduction) {
  return pieces().run({.partition = partition,
                       .element = size_of(reduction.to),
                       .terms = own,
                       .reduction = reduction,
                       .own = recv});
}

std::int64_t MpiExchange::all_gather(const Partition& partition, void* data, std::size_t element_bytes) {
  return pieces().run({.partition = partition,
                       .element = element_bytes,
                       .own = static_cast<std::byte*>(data) + partition.begin(rank_) * element_bytes,
                       .all = data});
}

// A binomial tree: in round k the 2^k ranks that have the data each send it to one that does not.
void MpiExchange::broadcast(void* data, std::size_t bytes, int root) {
  const int place = (rank_ - root + size_) % size_;
  for (std::size_t at = 0; at < bytes; at += kMessageBytes) {
    std::byte* piece = static_cast<std::byte*>(data) + at;
    const std::size_t length = std::min(kMessageBytes, bytes - at);
    int reach = 1;  // places below it have the piece when this rank starts to send
    if (place > 0) {
      while (reach * 2 <= place) reach *= 2;
      receive(piece, length, (place - reach + root) % size_);
      wait();
      reach *= 2;
    }
    for (; place + reach < size_; reach *= 2) send(piece, length, (place + reach + root) % size_);
    wait();
  }
}

std::int64_t MpiExchange::all_to_all(const void* send, void* recv, std::size_t bytes) {
  return blocks_.run(send, recv, bytes);
}

std::int64_t MpiExchange::barrier() {
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  MPI_CHECK(MPI_Ibarrier(communicator_, &request));
  wait();
  return now_ns();
}

}  // namespace lockstep
