// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/exchange.h"

#include <algorithm>

#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{4} << 20;
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
// Up to here one round of messages beats two.
constexpr std::size_t kSmallBytes = std::size_t{8} << 10;
constexpr int kTag = 0;  // messages of one pair of ranks never overtake one another
constexpr int kFirstPieceTag = 1;

// Where a rank brings one term, and the result takes its place.
class InPlace final : public PieceEnds {
 public:
  InPlace(const void* data, std::size_t element)
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
                         const WaitPlace& place)
    : communicator_(communicator), link_(link), place_(place), pieces_(communicator, terms, link, kFirstPieceTag, place) {
  MPI_CHECK(MPI_Comm_rank(communicator_, &rank_));
  MPI_CHECK(MPI_Comm_size(communicator_, &size_));
  const auto ranks = static_cast<std::size_t>(size_);
  staging_ = Buffer(std::min(kStagingBytes, ranks * kSmallBytes), Device{});
  sources_.resize(ranks);
  requests_.reserve(2 * ranks);
}

void MpiExchange::send(const void* data, std::size_t bytes, int to) {
  if (bytes == 0) return;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  MPI_CHECK(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, kTag, communicator_, &request));
  sent_bytes_ += bytes;
}

void MpiExchange::receive(void* data, std::size_t bytes, int from) {
  if (bytes == 0) return;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  MPI_CHECK(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, kTag, communicator_, &request));
}

void MpiExchange::wait() {
  wait_for(requests_, place_, "messages", link_);
  requests_.clear();
}

std::int64_t MpiExchange::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  if (size_ == 1) return now_ns();
  const std::size_t element = size_of(dtype);
  if (count * element <= kSmallBytes && sources_.size() * align_up(count * element) <= staging_.bytes())
    return all_reduce_small(data, count, dtype, op);
  InPlace ends(data, element);
  return all_reduce(count, ends, data, {.from = dtype, .to = dtype, .op = op});
}

std::int64_t MpiExchange::all_reduce(std::size_t count, PieceEnds& ends, void* result,
                                     const Reduction& reduction) {
  const std::size_t element = size_of(reduction.to);
  const Partition partition = Partition::even(count, size_, element);
  return pieces_.run({.partition = partition,
                      .element = element,
                      .ends = &ends,
                      .reduction = reduction,
                      .own = static_cast<std::byte*>(result) + partition.begin(rank_) * element,
                      .all = result});
}

// Everybody sends all of it to everybody, and adds up alike.
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
  return pieces_.run({.partition = partition,
                      .element = size_of(reduction.to),
                      .terms = own,
                      .reduction = reduction,
                      .own = recv});
}

std::int64_t MpiExchange::all_gather(const Partition& partition, void* data, std::size_t element_bytes) {
  return pieces_.run({.partition = partition,
                      .element = element_bytes,
                      .own = static_cast<std::byte*>(data) + partition.begin(rank_) * element_bytes,
                      .all = data});
}

// A binomial tree: in round k the 2^k ranks that have the data each send it to one that has not.
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

std::int64_t MpiExchange::barrier() {
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  MPI_CHECK(MPI_Ibarrier(communicator_, &request));
  wait();
  return now_ns();
}

}  // namespace lockstep
