// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/host_communicator.h"
#include "comm/partition.h"
#include "comm/reduce.h"
#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {

// Where ranks meet: each shows the others its call, and they wait for one another. A rank that leaves breaks
// the hub, and whoever waits for it throws; but a collective that all have begun is finished by all, as they
// use one another's memory.
class ThreadHub {
 public:
  struct Call {
    std::string_view operation;
    std::size_t count = 0;
    DType dtype = DType::f32;
    int root = 0;
    void* data = nullptr;  // this rank's memory that the others use

    bool matches(const Call& other) const {
      return operation == other.operation && count == other.count && dtype == other.dtype &&
             root == other.root;
    }
  };

  explicit ThreadHub(int size) : calls_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(calls_.size()); }
  const Call& call(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  // Shows this rank's call and waits for everybody's. Throws on every rank when they differ.
  void meet(int rank, const Call& call) {
    calls_[static_cast<std::size_t>(rank)] = call;
    begin();
    for (int other = 0; other < size(); ++other) {
      const Call& theirs = calls_[static_cast<std::size_t>(other)];
      CHECK(call.matches(theirs), "rank {} is in {} of {} {}, but rank {} is in {} of {} {}", rank,
            call.operation, call.count, name_of(call.dtype), other, theirs.operation, theirs.count,
            name_of(theirs.dtype));
    }
  }

  // Everybody is through with everybody's memory.
  void finish() {
    std::unique_lock lock(mutex_);
    const std::uint64_t generation = arrive();
    changed_.wait(lock, [&] { return generation_ != generation; });
  }

  void leave(int rank) {
    const std::scoped_lock lock(mutex_);
    left_ = rank;
    changed_.notify_all();
  }

 private:
  void begin() {
    std::unique_lock lock(mutex_);
    const std::uint64_t generation = generation_;
    if (left_ < 0) arrive();
    changed_.wait(lock, [&] { return generation_ != generation || left_ >= 0; });
    if (generation_ == generation) {
      throw Error(exit_code::failed,
                  fmt::format("rank {}: rank {} left the communicator", current_rank(), left_));
    }
  }

  // The generation that the arrival belongs to; the last one ends it.
  std::uint64_t arrive() {
    const std::uint64_t generation = generation_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++generation_;
      changed_.notify_all();
    }
    return generation;
  }

  std::vector<Call> calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int left_ = -1;
  std::uint64_t generation_ = 0;
};

namespace {

class ThreadTransport final : public HostTransport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), sources_(size()), destinations_(size()) {}
  ~ThreadTransport() override { hub_->leave(rank_); }

  std::string_view name() const override { return "threads"; }
  void* allocate(std::size_t) override { return nullptr; }
  void free(void*) override {}
  std::int64_t run(const Collective& c) override {
    switch (c.kind) {
      case CollectiveKind::all_reduce:
        all_reduce(c.recv, c.count, c.dtype, c.op);
        break;
      case CollectiveKind::reduce_scatter:
        reduce_scatter(c.send, c.recv, c.count, c.dtype, c.op);
        break;
      case CollectiveKind::all_gather:
        all_gather(c.send, c.recv, c.count, c.dtype);
        break;
      case CollectiveKind::broadcast:
        broadcast(c.recv, c.count, c.dtype, c.root);
        break;
      case CollectiveKind::barrier:
        meet({.operation = "barrier"});
        hub_->finish();
    }
    return met_ns_;
  }
  std::uint64_t sent_bytes() const override { return sent_bytes_; }
  void fail() noexcept override { hub_->leave(rank_); }

 private:
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
    meet({.operation = "all_reduce", .count = count, .dtype = dtype, .data = data});
    const std::size_t element = size_of(dtype);
    const Partition partition = Partition::even(count, hub_->size(), element);
    for (int rank = 0; rank < hub_->size(); ++rank) {
      std::byte* part = theirs(rank) + partition.begin(rank_) * element;
      sources_[static_cast<std::size_t>(rank)] = part;
      destinations_[static_cast<std::size_t>(rank)] = part;
    }
    const std::size_t own = partition.size(rank_);
    reduce_along_tree(sources_, destinations_, own, {.from = dtype, .to = dtype, .op = op});
    sent_bytes_ += (count - own + (size() - 1) * own) * element;
    hub_->finish();
  }

  void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) {
    meet(call("reduce_scatter", send, count, dtype));
    for (int rank = 0; rank < hub_->size(); ++rank) {
      sources_[static_cast<std::size_t>(rank)] =
          theirs(rank) + static_cast<std::size_t>(rank_) * count * size_of(dtype);
    }
    reduce_along_tree(sources_, {&recv, 1}, count, {.from = dtype, .to = dtype, .op = op});
    sent_bytes_ += (size() - 1) * count * size_of(dtype);
    hub_->finish();
  }

  void all_gather(const void* send, void* recv, std::size_t count, DType dtype) {
    meet(call("all_gather", send, count, dtype));
    const std::size_t bytes = count * size_of(dtype);
    for (int rank = 0; rank < hub_->size(); ++rank) {
      std::byte* to = static_cast<std::byte*>(recv) + static_cast<std::size_t>(rank) * bytes;
      if (to != theirs(rank)) std::memcpy(to, theirs(rank), bytes);
    }
    sent_bytes_ += (size() - 1) * bytes;
    hub_->finish();
  }

  void broadcast(void* data, std::size_t count, DType dtype, int root) {
    meet({.operation = "broadcast", .count = count, .dtype = dtype, .root = root, .data = data});
    const std::size_t bytes = count * size_of(dtype);
    if (rank_ == root) {
      sent_bytes_ += (size() - 1) * bytes;
    } else {
      std::memcpy(data, theirs(root), bytes);
    }
    hub_->finish();
  }

  void meet(const ThreadHub::Call& call) {
    hub_->meet(rank_, call);
    met_ns_ = now_ns();
  }
  static ThreadHub::Call call(std::string_view operation, const void* send, std::size_t count, DType dtype) {
    return {.operation = operation, .count = count, .dtype = dtype, .data = const_cast<void*>(send)};
  }
  std::size_t size() const { return static_cast<std::size_t>(hub_->size()); }
  std::byte* theirs(int rank) const { return static_cast<std::byte*>(hub_->call(rank).data); }

  std::shared_ptr<ThreadHub> hub_;
  int rank_;
  std::uint64_t sent_bytes_ = 0;
  std::int64_t met_ns_ = 0;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace

std::shared_ptr<ThreadHub> make_thread_hub(int size) {
  CHECK(size > 0, "{} ranks", size);
  return std::make_shared<ThreadHub>(size);
}

std::unique_ptr<Communicator> make_thread_communicator(std::shared_ptr<ThreadHub> hub, int rank) {
  CHECK(rank >= 0 && rank < hub->size(), "rank {} of {}", rank, hub->size());
  const int size = hub->size();
  return std::make_unique<HostCommunicator>(rank, size,
                                            std::make_unique<ThreadTransport>(std::move(hub), rank));
}

}  // namespace lockstep
