// SPDX-License-Identifier: Apache-2.0
//
// Stream: ordered work on a device. Event: a point in that order that other streams and the host can wait
// for. All work of a training step is ordered by these two. The host blocks only if a CPU stream has no other
// way to wait.
//
// On the CPU a compute stream runs its work inline, on the calling thread; large copies use that thread's
// OpenMP team. A communication or copy stream is one worker thread with a ring of tasks (no allocation after
// construction); run() executes the task on the calling thread if the worker is idle. On CUDA both are CUDA
// streams.
//
// An exception in a worker's task stops the stream: later tasks are skipped, and synchronize() and every wait
// for an event recorded on that stream afterwards rethrow it.
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

// Interfaces that a device's backend implements, in core/cpu and core/cuda.
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
  // True if the device refused to record a call, which invalidates the whole recording.
  virtual bool recording_is_broken() { return false; }
  // Null if the enqueued work cannot be replayed; reason then says why.
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

  // True if all work before the last record() is done, or if the event was never recorded. Rethrows the error
  // of the stream that recorded it.
  bool ready() { return backend_->ready(); }
  // Blocks the host until ready().
  void synchronize() { backend_->synchronize(); }

  detail::EventBackend& backend() { return *backend_; }

 private:
  std::unique_ptr<detail::EventBackend> backend_;
};

// The time at which a GPU reached a point of a stream, for accounting. No work waits for it. In recorded work
// it is the time of the last replay. On a CPU use the host's clock.
class TimedEvent {
 public:
  // Throws ConfigError as Stream does, and Error for a CPU.
  explicit TimedEvent(Device device);

  // Seconds between the two events' last record(), which the device must have reached (synchronize later work
  // first). Throws Error if an event was recorded inside recorded work that was never replayed.
  double seconds_since(TimedEvent& earlier) { return backend_->seconds_since(*earlier.backend_); }

  detail::TimedEventBackend& backend() { return *backend_; }

 private:
  std::unique_ptr<detail::TimedEventBackend> backend_;
};

// Recorded work that can be replayed any number of times: a CUDA graph.
class Recording {
 public:
  Recording() = default;
  explicit Recording(std::unique_ptr<detail::RecordingBackend> backend) : backend_(std::move(backend)) {}

  bool empty() const { return backend_ == nullptr; }
  // Number of kernels, copies and other nodes.
  std::size_t operations() const { return backend_ ? backend_->operations() : 0; }
  detail::RecordingBackend& backend() { return *backend_; }

 private:
  std::unique_ptr<detail::RecordingBackend> backend_;
};

class Stream {
 public:
  // Throws ConfigError if the device's backend was not built or has no such device.
  Stream(Device device, StreamUse use);

  Device device() const { return device_; }
  StreamUse use() const { return use_; }
  // True on a CPU: host threads do the work, so the host's clock measures it. Other streams need TimedEvents.
  bool runs_on_host() const;
  // CPU only: the number of threads for kernels that run on this stream's worker, separate from the compute
  // stream's threads. At least 1; applies to kernels enqueued afterwards.
  int threads() const { return threads_; }
  void set_threads(int threads) { threads_ = threads; }
  // Runs host work in stream order (CPU inline or on the worker; CUDA as a host function).
  void enqueue(Task task) { backend_->enqueue(task); }
  // enqueue() and synchronize(). Faster on an idle CPU worker: the calling thread runs the task and the
  // worker need not wake up.
  void run(Task task) { backend_->run(task); }
  // Copies bytes in stream order, in any direction between this stream's device and the host.
  void copy(void* to, const void* from, std::size_t bytes) { backend_->copy(to, from, bytes); }
  // Marks the work enqueued so far.
  void record(Event& event) { backend_->record(event.backend()); }
  void record(TimedEvent& event) { backend_->record_time(event.backend()); }
  // Later work on this stream runs after the event's last record(). Blocks the host only on inline CPU
  // streams.
  void wait(Event& event) { backend_->wait(event.backend()); }
  // Blocks the host until all enqueued work is done.
  void synchronize() { backend_->synchronize(); }

  // Processor time of the stream's worker so far (core/system/processor_time.h); 0 without a worker: on a
  // GPU, and for inline streams.
  double processor_seconds() { return backend_->processor_seconds(); }

  // True if record_work() is supported: on a GPU.
  bool can_record() const { return backend_->can_record(); }
  // Calls work() and records, without running it, all work that it enqueues on this stream and on streams
  // that wait for it and that it finally waits for. Addresses and sizes are recorded, not contents. work must
  // not synchronize or enqueue() host tasks. Returns an empty Recording if the work cannot be replayed;
  // reason then says why. An exception from work() counts as such a reason if the device refused to record,
  // or to record a call; other exceptions propagate.
  template <typename F>
  Recording record_work(F&& work, std::string& reason) {
    bool began = false;
    try {
      backend_->begin_recording();
      began = true;
      work();
    } catch (const std::exception& error) {
      const bool refused = !began || backend_->recording_is_broken();
      if (began) backend_->end_recording(reason);
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
