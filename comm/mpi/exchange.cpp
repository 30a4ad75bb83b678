// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/exchange.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{4} << 20;
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
// Up to here one round of messages beats two.
constexpr std::size_t kSmallBytes = std::size_t{8} << 10;
constexpr int kTag = 0;  // messages of one pair of ranks never overtake one another

// Polls at first, then lets others run, then sleeps: MPI's own waiting would burn a core that computes.
class Backoff {
 public:
  void pause() {
    ++polls_;
    if (polls_ < 500) return;
    if (polls_ < 5000) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int polls_ = 0;
};

// How many of `size` elements are left from `at` on, at most `step`.
std::size_t clip(std::size_t size, std::size_t at, std::size_t step) {
  return at < size ? std::min(step, size - at) : 0;
}

}  // namespace

MpiExchange::MpiExchange(MPI_Comm communicator, Options options, MpiSession& session,
                         const std::atomic<bool>& broken)
    : communicator_(communicator),
      session_(session),
      broken_(broken),
      order_(std::move(options.order)),
      group_(options.group) {
  MPI_CHECK(MPI_Comm_rank(communicator_, &rank_));
  MPI_CHECK(MPI_Comm_size(communicator_, &size_));
  if (order_.empty()) {
    order_.resize(static_cast<std::size_t>(size_));
    std::iota(order_.begin(), order_.end(), 0);
  }
  const auto peers = static_cast<std::size_t>(size_ - 1);
  staging_ = Buffer(std::max(kStagingBytes, peers * kAlignment), Device{});
  sources_.resize(order_.size());
  requests_.reserve(2 * std::max<std::size_t>(peers, 1));
}

std::byte* MpiExchange::slot(int peer, std::size_t slot_bytes) const {
  return staging_.data() + static_cast<std::size_t>(peer < rank_ ? peer : peer - 1) * slot_bytes;
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
  Backoff backoff;
  for (;;) {
    int done = 0;
    MPI_CHECK(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE));
    if (done != 0) break;
    if (broken_.load(std::memory_order_relaxed)) {
      session_.failing = true;  // messages are under way: MPI_Finalize would wait for them
      throw Error(exit_code::failed, fmt::format("{}: gave up waiting for messages", current_place()));
    }
    backoff.pause();
  }
  requests_.clear();
}

void MpiExchange::reduce_slots(const void* own, void* destination, std::size_t count, std::size_t slot_bytes,
                               const Reduction& reduction) {
  for (std::size_t i = 0; i < order_.size(); ++i) {
    sources_[i] = order_[i] == rank_ ? own : slot(order_[i], slot_bytes);
  }
  reduce_in_rank_order(sources_, {&destination, 1}, count, reduction);
}

void MpiExchange::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  if (size_ == 1) return;
  const std::size_t element = size_of(dtype);
  const auto peers = static_cast<std::size_t>(size_ - 1);
  if (count * element <= kSmallBytes && peers * align_up(count * element) <= staging_.bytes()) {
    return all_reduce_small(data, count, dtype, op);
  }
  const Partition partition = Partition::even(count, size_, element);
  std::byte* own = static_cast<std::byte*>(data) + partition.begin(rank_) * element;
  reduce_scatter(partition, data, own, {.from = dtype, .to = dtype, .op = op});
  all_gather(partition, data, element);
}

void MpiExchange::all_reduce_small(void* data, std::size_t count, DType dtype, ReduceOp op) {
  const std::size_t bytes = count * size_of(dtype);
  const std::size_t slot_bytes = align_up(bytes);
  for (int k = 1; k < size_; ++k) receive(slot(peer(k), slot_bytes), bytes, peer(k));
  for (int k = 1; k < size_; ++k) send(data, bytes, peer(k));
  wait();
  reduce_slots(data, data, count, slot_bytes, {.from = dtype, .to = dtype, .op = op, .group = group_});
}

void MpiExchange::reduce_scatter(const Partition& partition, const void* send_data, void* recv,
                                 Reduction reduction) {
  reduction.group = group_;
  const std::size_t from = size_of(reduction.from);
  const auto* data = static_cast<const std::byte*>(send_data);
  const std::size_t slots = std::max<std::size_t>(static_cast<std::size_t>(size_ - 1), 1);
  const std::size_t slot_bytes = staging_.bytes() / slots / kAlignment * kAlignment;
  const std::size_t step = slot_bytes / from;
  for (std::size_t at = 0; at < partition.size(0); at += step) {
    const std::size_t own = clip(partition.size(rank_), at, step);
    for (int k = 1; k < size_; ++k) receive(slot(peer(k), slot_bytes), own * from, peer(k));
    for (int k = 1; k < size_; ++k) {
      const int to = peer(k);
      send(data + (partition.begin(to) + at) * from, clip(partition.size(to), at, step) * from, to);
    }
    wait();
    if (own == 0) continue;
    reduce_slots(data + (partition.begin(rank_) + at) * from,
                 static_cast<std::byte*>(recv) + at * size_of(reduction.to), own, slot_bytes, reduction);
  }
}

void MpiExchange::all_gather(const Partition& partition, void* data, std::size_t element_bytes) {
  auto* elements = static_cast<std::byte*>(data);
  const std::size_t step = kMessageBytes / element_bytes;
  for (std::size_t at = 0; at < partition.size(0); at += step) {
    const auto piece = [&](int rank) { return elements + (partition.begin(rank) + at) * element_bytes; };
    const auto bytes = [&](int rank) { return clip(partition.size(rank), at, step) * element_bytes; };
    for (int k = 1; k < size_; ++k) receive(piece(peer(k)), bytes(peer(k)), peer(k));
    for (int k = 1; k < size_; ++k) send(piece(rank_), bytes(rank_), peer(k));
    wait();
  }
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

void MpiExchange::barrier() {
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  MPI_CHECK(MPI_Ibarrier(communicator_, &request));
  wait();
}

}  // namespace lockstep
