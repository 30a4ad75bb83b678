// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the CPU. Each record() of an event starts a new generation; a wait is for the
// generation that was current at the call. Generations recorded on several streams may complete in any order.
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <omp.h>

#include "core/backend_factories.h"
#include "core/error.h"
#include "core/system/backtrace.h"
#include "core/system/processor_time.h"

namespace lockstep::detail {
namespace {

// Shared by the event and the tasks that refer to it: either may be destroyed first.
class EventState {
 public:
  EventState() { pending_.reserve(kUnderWay); }

  std::uint64_t next_generation() {
    const std::lock_guard lock(mutex_);
    pending_.push_back(++recorded_);
    return recorded_;
  }
  std::uint64_t current_generation() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  void complete(std::uint64_t generation, std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      std::erase(pending_, generation);
      if (error) failed_.push_back({generation, error});
    }
    changed_.notify_all();
  }
  // Rethrows the error of the stream that recorded.
  void wait(std::uint64_t generation) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done(generation); });
    rethrow(generation);
  }
  bool ready() {
    const std::lock_guard lock(mutex_);
    if (!done(recorded_)) return false;
    rethrow(recorded_);
    return true;
  }

 private:
  // Typical number of pending records of one event; more allocate.
  static constexpr std::size_t kUnderWay = 16;

  struct Failure {
    std::uint64_t generation;
    std::exception_ptr error;
  };

  bool done(std::uint64_t generation) const {
    return std::ranges::find(pending_, generation) == pending_.end();
  }
  void rethrow(std::uint64_t generation) const {
    const auto found = std::ranges::find(failed_, generation, &Failure::generation);
    if (found != failed_.end()) std::rethrow_exception(found->error);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::vector<std::uint64_t> pending_;  // generations recorded and not completed
  std::vector<Failure> failed_;         // generations recorded after an error
};

class CpuEvent final : public EventBackend {
 public:
  bool ready() override { return state_->ready(); }
  void synchronize() override { state_->wait(state_->current_generation()); }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

const std::shared_ptr<EventState>& state_of(EventBackend& event) {
  auto* cpu_event = dynamic_cast<CpuEvent*>(&event);
  CHECK(cpu_event != nullptr, "the event belongs to another device than the CPU stream");
  return cpu_event->state();
}

// Compute stream: all work runs immediately on the caller's thread, large copies on its OpenMP team.
class InlineStream final : public StreamBackend {
 public:
  void enqueue(Task task) override { task(); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    if (bytes < kTeamBytes || omp_get_max_threads() == 1) {
      std::memcpy(to, from, bytes);
      return;
    }
    // A thread that loses its core delays only its current piece.
#pragma omp parallel for schedule(dynamic)
    for (std::size_t begin = 0; begin < bytes; begin += kPieceBytes) {
      std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                  std::min(kPieceBytes, bytes - begin));
    }
  }
  void record(EventBackend& event) override {
    EventState& state = *state_of(event);
    state.complete(state.next_generation(), nullptr);
  }
  void wait(EventBackend& event) override { event.synchronize(); }
  void synchronize() override {}
  void* native() override { return nullptr; }

 private:
  // One thread copies fewer bytes sooner than a team that sleeps: on two cores both take as long for 0.5 to
  // 1 MiB, if the team spins for 128 KiB.
  static constexpr std::size_t kTeamBytes = std::size_t{1} << 20;
  static constexpr std::size_t kPieceBytes = std::size_t{32} << 10;
};

// Communication and copy streams: one thread and a ring of work allocated once. run() executes its task on
// the calling thread if the ring is empty. Two tasks never run at the same time.
class WorkerStream final : public StreamBackend {
 public:
  explicit WorkerStream(const char* name)
      : ring_(kRing), rank_(current_rank()), thread_([this, name] {
          name_thread(name);
          run_worker();
        }) {}
  ~WorkerStream() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    to_do_.notify_all();
    thread_.join();
  }

  void enqueue(Task task) override {
    push({.task = task, .kind = Work::Kind::task});
    to_do_.notify_one();
  }
  void run(Task task) override {
    std::unique_lock lock(mutex_);
    if (done_ < pushed_) {
      lock.unlock();
      enqueue(task);
      return synchronize();
    }
    const RankScope scope(rank_);
    ring_[pushed_++ % kRing] = {.task = task, .kind = Work::Kind::task};
    take_next(lock);
    if (done_ < pushed_) to_do_.notify_one();
    if (error_) std::rethrow_exception(error_);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) enqueue([=] { std::memcpy(to, from, bytes); });
  }
  void record(EventBackend& event) override {
    const auto& state = state_of(event);
    push({.event = state, .generation = state->next_generation(), .kind = Work::Kind::record});
    to_do_.notify_one();
  }
  void wait(EventBackend& event) override {
    const auto& state = state_of(event);
    push({.event = state, .generation = state->current_generation(), .kind = Work::Kind::wait});
    to_do_.notify_one();
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&, target = pushed_] { return done_ >= target; });
    if (error_) std::rethrow_exception(error_);
  }
  double processor_seconds() override { return lockstep::processor_seconds(thread_); }
  void* native() override { return nullptr; }

 private:
  static constexpr std::size_t kRing = 1024;

  struct Work {
    enum class Kind { task, record, wait };
    Task task = {};
    std::shared_ptr<EventState> event = {};
    std::uint64_t generation = 0;
    Kind kind = Kind::task;
  };

  void push(Work work) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return pushed_ - done_ < kRing; });
    ring_[pushed_ % kRing] = std::move(work);
    ++pushed_;
  }

  void run_worker() {
    const RankScope scope(rank_);
    std::unique_lock lock(mutex_);
    for (;;) {
      to_do_.wait(lock, [&] { return stopping_ || (!taken_ && done_ < pushed_); });
      if (done_ == pushed_) return;
      take_next(lock);
    }
  }

  // Executes the next work, on the worker or on the thread that called run(). Requires pending work and
  // taken_ == false.
  void take_next(std::unique_lock<std::mutex>& lock) {
    taken_ = true;
    Work work = std::move(ring_[done_ % kRing]);
    lock.unlock();
    execute(work);
    lock.lock();
    taken_ = false;
    ++done_;
    ended_.notify_all();
  }

  // After an error no task runs, but events still complete, so that waiting threads get the error.
  void execute(Work& work) {
    std::exception_ptr error = failure();
    if (work.kind == Work::Kind::record) return work.event->complete(work.generation, error);
    if (error) return;
    try {
      work.kind == Work::Kind::task ? work.task() : work.event->wait(work.generation);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
  }

  std::exception_ptr failure() {
    const std::lock_guard lock(mutex_);
    return error_;
  }

  std::mutex mutex_;
  std::condition_variable to_do_;  // for the worker
  std::condition_variable ended_;  // for synchronize() and for room in the ring
  std::vector<Work> ring_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  bool taken_ = false;  // the next work is being executed
  bool stopping_ = false;
  std::exception_ptr error_;
  int rank_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace

std::unique_ptr<StreamBackend> make_cpu_stream(StreamUse use) {
  if (use == StreamUse::compute) return std::make_unique<InlineStream>();
  return std::make_unique<WorkerStream>(use == StreamUse::communication ? "ls-communicate" : "ls-copy");
}

std::unique_ptr<EventBackend> make_cpu_event() { return std::make_unique<CpuEvent>(); }

}  // namespace lockstep::detail
