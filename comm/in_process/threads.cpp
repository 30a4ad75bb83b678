// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/gradients/partition.h"
#include "comm/in_process/host_communicator.h"
#include "comm/job/placement.h"
#include "comm/sums/reduce.h"
#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {

// ThreadHub: shows each rank's call to the others, and lets ranks wait for each other. A rank that waits for
// one whose communicator has ended abandons the job. A collective that all have begun is finished by all,
// because they use each other's memory.
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

  ThreadHub(std::vector<int> node_of_rank, std::shared_ptr<JobState> job)
      : job_(std::move(job)), node_of_rank_(std::move(node_of_rank)), calls_(node_of_rank_.size()) {}

  int size() const { return static_cast<int>(calls_.size()); }
  const std::shared_ptr<JobState>& job() const { return job_; }
  std::span<const int> node_of_rank() const { return node_of_rank_; }
  const Call& call(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  // Shows this rank's call and waits for those of all ranks. Throws Error on every rank if they differ.
  void meet(int rank, const Call& call, const WaitPlace& place) {
    calls_[static_cast<std::size_t>(rank)] = call;
    begin(place);
    for (int other = 0; other < size(); ++other) {
      const Call& theirs = calls_[static_cast<std::size_t>(other)];
      CHECK(call.matches(theirs), "rank {} is in {} of {} {}, but rank {} is in {} of {} {}", rank,
            call.operation, call.count, name_of(call.dtype), other, theirs.operation, theirs.count,
            name_of(theirs.dtype));
    }
  }

  // Waits until no rank uses another's memory any more.
  void finish() {
    std::unique_lock lock(mutex_);
    const std::uint64_t generation = arrive();
    changed_.wait(lock, [&] { return generation_ != generation; });
  }

  // Call when the rank's communicator ends.
  void end(int rank) {
    const std::scoped_lock lock(mutex_);
    ended_ = rank;
    changed_.notify_all();
  }

 private:
  void begin(const WaitPlace& place) {
    constexpr std::chrono::milliseconds kGlance{20};  // between checks for an abandoned job
    std::unique_lock lock(mutex_);
    const std::uint64_t generation = generation_;
    if (ended_ < 0 && !job_->abandoned()) arrive();
    PeerWait wait(place, "the other ranks");
    while (generation_ == generation) {
      if (ended_ >= 0) job_->abandon(fmt::format("rank {} destroyed its communicator", ended_));
      wait.look();
      changed_.wait_for(lock, kGlance, [&] { return generation_ != generation || ended_ >= 0; });
    }
  }

  // Returns the generation that the arrival belongs to; the last arrival ends it.
  std::uint64_t arrive() {
    const std::uint64_t generation = generation_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++generation_;
      changed_.notify_all();
    }
    return generation;
  }

  std::shared_ptr<JobState> job_;
  std::vector<int> node_of_rank_;
  std::vector<Call> calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int ended_ = -1;  // a rank whose communicator has ended; -1: none
  std::uint64_t generation_ = 0;
};

namespace {

// A rank's input to split().
struct ThreadGroupCall {
  int rank;
  int colour;
  int key;
  int node;
  std::shared_ptr<ThreadHub> hub;  // made by the group's first rank
};

class ThreadTransport final : public HostTransport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int rank)
      : HostTransport(rank, hub->size(), hub->job()),
        hub_(std::move(hub)),
        sources_(ranks()),
        destinations_(ranks()) {}
  ~ThreadTransport() override { hub_->end(rank()); }

  std::string_view name() const override { return "threads"; }
  std::shared_ptr<void> allocate(std::size_t) override { return nullptr; }
  std::uint64_t sent_bytes() const override { return sent_bytes_; }
  std::span<const int> node_of_rank() const override { return hub_->node_of_rank(); }

  // Ranks on several simulated nodes share no memory.
  std::vector<std::byte*> shared_places(void* own) override {
    meet({.operation = "shared_places", .data = own});
    std::vector<std::byte*> places;
    const bool one_node = std::ranges::count(node_of_rank(), 0) == size();
    for (int other = 0; other < size() && one_node; ++other) places.push_back(theirs(other));
    hub_->finish();
    return places;
  }

  std::unique_ptr<HostTransport> split(int colour, int key) override {
    ThreadGroupCall own{.rank = rank(),
                        .colour = colour,
                        .key = key,
                        .node = hub_->node_of_rank()[static_cast<std::size_t>(rank())],
                        .hub = {}};
    meet({.operation = "split", .data = &own});
    std::vector<ThreadGroupCall*> members;
    for (int other = 0; other < size(); ++other) {
      auto* theirs = static_cast<ThreadGroupCall*>(hub_->call(other).data);
      if (theirs->colour == colour) members.push_back(theirs);
    }
    std::ranges::sort(members, {}, [](const auto* member) { return std::pair(member->key, member->rank); });
    if (members.front() == &own) {
      std::vector<int> nodes;
      for (const ThreadGroupCall* member : members) nodes.push_back(member->node);
      own.hub = std::make_shared<ThreadHub>(place_ranks(0, nodes).node_of, job());
    }
    hub_->finish();
    std::shared_ptr<ThreadHub> hub = members.front()->hub;
    hub_->finish();
    if (colour < 0) return nullptr;
    const auto place = std::ranges::find(members, &own) - members.begin();
    return std::make_unique<ThreadTransport>(std::move(hub), static_cast<int>(place));
  }

 private:
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override {
    meet({.operation = "all_reduce", .count = count, .dtype = dtype, .data = data});
    const std::size_t element = size_of(dtype);
    const Partition partition = Partition::even(count, size(), element);
    for (int other = 0; other < size(); ++other) {
      std::byte* part = theirs(other) + partition.begin(rank()) * element;
      sources_[static_cast<std::size_t>(other)] = part;
      destinations_[static_cast<std::size_t>(other)] = part;
    }
    const std::size_t own = partition.size(rank());
    reduce_along_tree(sources_, destinations_, own, {.from = dtype, .to = dtype, .op = op});
    sent_bytes_ += (count - own + (ranks() - 1) * own) * element;
    hub_->finish();
  }

  void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) override {
    meet(call("reduce_scatter", send, count, dtype));
    for (int other = 0; other < size(); ++other) {
      sources_[static_cast<std::size_t>(other)] =
          theirs(other) + static_cast<std::size_t>(rank()) * count * size_of(dtype);
    }
    reduce_along_tree(sources_, {&recv, 1}, count, {.from = dtype, .to = dtype, .op = op});
    sent_bytes_ += (ranks() - 1) * count * size_of(dtype);
    hub_->finish();
  }

  void all_gather(const void* send, void* recv, std::size_t count, DType dtype) override {
    meet(call("all_gather", send, count, dtype));
    const std::size_t bytes = count * size_of(dtype);
    for (int other = 0; other < size(); ++other) {
      std::byte* to = static_cast<std::byte*>(recv) + static_cast<std::size_t>(other) * bytes;
      if (to != theirs(other)) std::memcpy(to, theirs(other), bytes);
    }
    sent_bytes_ += (ranks() - 1) * bytes;
    hub_->finish();
  }

  void all_to_all(const void* send, void* recv, std::size_t count, DType dtype) override {
    meet(call("all_to_all", send, count, dtype));
    const std::size_t bytes = count * size_of(dtype);
    for (int other = 0; other < size(); ++other) {
      const std::byte* block = theirs(other) + static_cast<std::size_t>(rank()) * bytes;
      std::memcpy(static_cast<std::byte*>(recv) + static_cast<std::size_t>(other) * bytes, block, bytes);
    }
    sent_bytes_ += (ranks() - 1) * bytes;
    hub_->finish();
  }

  void barrier() override {
    meet({.operation = "barrier"});
    hub_->finish();
  }

  void broadcast(void* data, std::size_t count, DType dtype, int root) override {
    meet({.operation = "broadcast", .count = count, .dtype = dtype, .root = root, .data = data});
    const std::size_t bytes = count * size_of(dtype);
    if (rank() == root) {
      sent_bytes_ += (ranks() - 1) * bytes;
    } else {
      std::memcpy(data, theirs(root), bytes);
    }
    hub_->finish();
  }

  void meet(const ThreadHub::Call& call) {
    hub_->meet(rank(), call, place());
    met(now_ns());
  }
  static ThreadHub::Call call(std::string_view operation, const void* send, std::size_t count, DType dtype) {
    return {.operation = operation, .count = count, .dtype = dtype, .data = const_cast<void*>(send)};
  }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  std::byte* theirs(int rank) const { return static_cast<std::byte*>(hub_->call(rank).data); }

  std::shared_ptr<ThreadHub> hub_;
  std::uint64_t sent_bytes_ = 0;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace

std::shared_ptr<ThreadHub> make_thread_hub(int size, std::span<const int> node_of_rank) {
  CHECK(size > 0, "{} ranks", size);
  std::vector<int> nodes(node_of_rank.begin(), node_of_rank.end());
  nodes.resize(static_cast<std::size_t>(size));
  return std::make_shared<ThreadHub>(place_ranks(0, nodes).node_of, std::make_shared<JobState>());
}

std::unique_ptr<Communicator> make_thread_communicator(std::shared_ptr<ThreadHub> hub, int rank) {
  CHECK(rank >= 0 && rank < hub->size(), "rank {} of {}", rank, hub->size());
  return std::make_unique<HostCommunicator>(std::make_unique<ThreadTransport>(std::move(hub), rank));
}

}  // namespace lockstep
