// SPDX-License-Identifier: Apache-2.0
//
// Stream: ordered work on a device. Event: a point in that order others can wait for. Everything in a
// training step is ordered by these two; the host blocks only where a CPU stream has no other way to wait.
//
// On the CPU a compute stream runs its work inline, on the calling thread; a communication or copy stream is
// one worker thread with a ring of tasks (no allocation after construction), and whoever waits for what it
// has not begun does it himself. On CUDA both are CUDA streams.
//
// An exception in a worker's task stops the stream: later tasks are skipped, and every wait for an event of
// that stream, and synchronize(), rethrow it.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "core/device.h"

namespace lockstep {

// A small callable stored in place: copyable as bytes, never on the heap.
class Task {
 public:
  static constexpr std::size_t kCapacity = 144;

  Task() = default;
  template <typename F>
  requires(std::is_trivially_copyable_v<F> && sizeof(F) <= kCapacity && !std::is_same_v<F, Task>)
      Task(F function) {  // NOLINT: implicit, so that a lambda is a Task
    static_assert(alignof(F) <= alignof(std::max_align_t));
    std::memcpy(storage_, &function, sizeof(F));
    call_ = [](void* storage) { (*static_cast<F*>(storage))(); };
  }
  void operator()() { call_(storage_); }

 private:
  alignas(std::max_align_t) std::byte storage_[kCapacity] = {};
  void (*call_)(void*) = nullptr;
};

enum class StreamUse { compute, communication, copy };

namespace detail {

// What a device's backend implements; core/cpu and core/cuda hold the implementations.
struct EventBackend {
  virtual ~EventBackend() = default;
  virtual bool ready() = 0;
  virtual void synchronize() = 0;
};
struct TimedEventBackend {
  virtual ~TimedEventBackend() = default;
  virtual double seconds_since(TimedEventBackend& earlier) = 0;
};
struct RecordingBackend {
  virtual ~RecordingBackend() = default;
  virtual std::size_t operations() const = 0;
};
struct StreamBackend {
  virtual ~StreamBackend() = default;
  virtual void enqueue(Task task) = 0;
  virtual void run(Task task) {
    enqueue(task);
    synchronize();
  }
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void record(EventBackend& event) = 0;
  virtual void wait(EventBackend& event) = 0;
  virtual void synchronize() = 0;
  virtual void* native() = 0;
  virtual void record_time(TimedEventBackend&) {}  // a CPU has none
  virtual double processor_seconds() { return 0; }
  virtual bool can_record() const { return false; }
  virtual void begin_recording() {}
  // Whether the device has refused to record a call, and so all of it.
  virtual bool recording_is_broken() { return false; }
  // Null when what was enqueued cannot be replayed; reason then says why.
  virtual std::unique_ptr<RecordingBackend> end_recording(std::string& reason) {
    reason = "the device cannot record work";
    return nullptr;
  }
  virtual void replay(RecordingBackend&) {}
};

}  // namespace detail

class Event {
 public:
  explicit Event(Device device);

  // Whether all work before the last record() is done. True for an event never recorded. Rethrows the error
  // of the stream that recorded it.
  bool ready() { return backend_->ready(); }
  // Blocks the host until ready().
  void synchronize() { backend_->synchronize(); }

  detail::EventBackend& backend() { return *backend_; }

 private:
  std::unique_ptr<detail::EventBackend> backend_;
};

// A moment in the order of a GPU's stream, for accounts: when the device got there. Nothing waits for it. In
// recorded work it is the moment of the last replay. On a CPU the host's clock tells the same.
class TimedEvent {
 public:
  // Throws ConfigError as Stream does; an Error for a CPU.
  explicit TimedEvent(Device device);

  // Of the last record() of each, which the device must have reached (synchronize something behind them).
  // Between a record() within recorded work and its first replay there is no time: an Error.
  double seconds_since(TimedEvent& earlier) { return backend_->seconds_since(*earlier.backend_); }

  detail::TimedEventBackend& backend() { return *backend_; }

 private:
  std::unique_ptr<detail::TimedEventBackend> backend_;
};

// Work that was recorded instead of run, to be replayed as a whole, as often as one likes: a CUDA graph.
class Recording {
 public:
  Recording() = default;
  explicit Recording(std::unique_ptr<detail::RecordingBackend> backend) : backend_(std::move(backend)) {}

  bool empty() const { return backend_ == nullptr; }
  // Kernels, copies and other nodes.
  std::size_t operations() const { return backend_ ? backend_->operations() : 0; }
  detail::RecordingBackend& backend() { return *backend_; }

 private:
  std::unique_ptr<detail::RecordingBackend> backend_;
};

class Stream {
 public:
  // Throws ConfigError when the device's backend was not built or has no such device.
  Stream(Device device, StreamUse use);

  Device device() const { return device_; }
  StreamUse use() const { return use_; }
  // Whether threads of the host do its work, so that the host's clock tells when: on a CPU. Moments of other
  // streams are TimedEvents.
  bool runs_on_host() const;
  // On a CPU: the threads that kernels take which run on this stream's worker, beside those of the stream
  // that computes. From 1 on; for the kernels enqueued from now on.
  int threads() const { return threads_; }
  void set_threads(int threads) { threads_ = threads; }
  // Runs host work in stream order (CPU inline or on the worker; CUDA as a host function).
  void enqueue(Task task) { backend_->enqueue(task); }
  // enqueue() and synchronize(). The sooner on a CPU's worker that has nothing to do: it need not wake up,
  // and the calling thread does the work.
  void run(Task task) { backend_->run(task); }
  // Copies bytes in stream order, in any direction between this stream's device and the host.
  void copy(void* to, const void* from, std::size_t bytes) { backend_->copy(to, from, bytes); }
  // Marks the work enqueued so far.
  void record(Event& event) { backend_->record(event.backend()); }
  void record(TimedEvent& event) { backend_->record_time(event.backend()); }
  // Later work on this stream runs after the event's last record(). Blocks the host on inline CPU streams
  // only.
  void wait(Event& event) { backend_->wait(event.backend()); }
  // Blocks the host until everything enqueued is done.
  void synchronize() { backend_->synchronize(); }

  // What its worker has taken of a core so far (core/processor_time.h); 0 where it has none: on a GPU, and
  // where work runs inline.
  double processor_seconds() { return backend_->processor_seconds(); }

  // Whether record_work() works: on a GPU.
  bool can_record() const { return backend_->can_record(); }
  // Calls work(), and keeps what it enqueues here, and on streams that wait for this one and that this one
  // waits for in the end, without running it. Addresses and sizes are recorded, not contents. work may
  // neither synchronize nor enqueue() host tasks. Empty when that cannot be replayed; reason then says why.
  // What it throws because the device refuses to record a call of it is such a reason.
  template <typename F>
  Recording record_work(F&& work, std::string& reason) {
    backend_->begin_recording();
    try {
      work();
    } catch (const std::exception& error) {
      const bool refused = backend_->recording_is_broken();
      backend_->end_recording(reason);
      if (!refused) throw;
      reason = error.what();
      return {};
    }
    return Recording(backend_->end_recording(reason));
  }
  void replay(Recording& recording) { backend_->replay(recording.backend()); }

  // cudaStream_t, or null on the CPU.
  void* native() const { return backend_->native(); }

 private:
  Device device_;
  StreamUse use_;
  int threads_ = 1;
  std::unique_ptr<detail::StreamBackend> backend_;
};

}  // namespace lockstep
