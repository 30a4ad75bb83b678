// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>

#include "core/backend_factories.h"
#include "core/cuda/check.h"
#include "core/cuda/release.h"

namespace lockstep::detail {
namespace {

// The first exception of a stream's host tasks, because an exception must not propagate through CUDA's
// callback. Shared by the stream, its events and its pending tasks.
class HostErrors {
 public:
  HostErrors(int rank, std::string stream) : rank_(rank), stream_(std::move(stream)) {}
  // "compute stream of cuda:0", for messages.
  const std::string& stream() const { return stream_; }
  // Skips the task if an earlier task failed.
  void run(Task& task) noexcept {
    if (first()) return;
    const RankScope scope(rank_);
    try {
      task();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      first_ = std::current_exception();
    }
  }
  void rethrow() {
    if (const std::exception_ptr error = first()) std::rethrow_exception(error);
  }

 private:
  std::exception_ptr first() {
    const std::lock_guard lock(mutex_);
    return first_;
  }

  std::mutex mutex_;
  std::exception_ptr first_;
  int rank_;
  std::string stream_;
};

// A kernel's failure is reported by a call long after its launch. The kernel is unknown then, so the message
// names the stream.
void check_on(const std::string& stream, cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    check_cuda(status, fmt::format("{}, {},", call, stream).c_str(), __FILE__, __LINE__);
}

class CudaEvent final : public EventBackend {
 public:
  explicit CudaEvent(Device device) : device_(device) {
    open_device(device);
    // The host sleeps while it waits for the event, as open_device() selects for streams; events need their
    // own flag.
    CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  ~CudaEvent() override { release_on(device_, "cudaEventDestroy", cudaEventDestroy, event_); }

  bool ready() override {
    make_current(device_);
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // clears the status, which a later cudaGetLastError() would return
      return false;
    }
    check(status, "cudaEventQuery");
    return true;
  }
  void synchronize() override {
    make_current(device_);
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }
  // The stream's device must be current.
  void record(cudaStream_t stream, std::shared_ptr<HostErrors> errors) {
    CUDA_CHECK(cudaEventRecord(event_, stream));
    const std::lock_guard lock(mutex_);
    errors_ = std::move(errors);
  }
  cudaEvent_t get() const { return event_; }

 private:
  void check(cudaError_t status, const char* call) {
    std::shared_ptr<HostErrors> errors;
    {
      const std::lock_guard lock(mutex_);
      errors = errors_;
    }
    if (status != cudaSuccess) check_on(errors ? errors->stream() : "no stream", status, call);
    if (errors) errors->rethrow();
  }

  Device device_;
  cudaEvent_t event_ = nullptr;
  std::mutex mutex_;
  std::shared_ptr<HostErrors> errors_;  // of the stream that recorded the event last
};

CudaEvent& cuda_event(EventBackend& event) {
  auto* found = dynamic_cast<CudaEvent*>(&event);
  CHECK(found != nullptr, "the event was not created for a CUDA device");
  return *found;
}

class CudaTimedEvent final : public TimedEventBackend {
 public:
  explicit CudaTimedEvent(Device device) : device_(device) {
    open_device(device);
    CUDA_CHECK(cudaEventCreate(&event_));  // without the flag of CudaEvent: the host never waits for it
  }
  ~CudaTimedEvent() override { release_on(device_, "cudaEventDestroy", cudaEventDestroy, event_); }
  double seconds_since(TimedEventBackend& earlier) override;
  // The stream's device must be current. In a capture the event becomes a node of the graph (external), so
  // that each replay records its time.
  void record(cudaStream_t stream) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    const bool captured = capture != cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaEventRecordWithFlags(event_, stream,
                                        captured ? cudaEventRecordExternal : cudaEventRecordDefault));
  }

 private:
  Device device_;
  cudaEvent_t event_ = nullptr;
};

CudaTimedEvent& cuda_event(TimedEventBackend& event) {
  auto* found = dynamic_cast<CudaTimedEvent*>(&event);
  CHECK(found != nullptr, "the event was not created for a CUDA device");
  return *found;
}

double CudaTimedEvent::seconds_since(TimedEventBackend& earlier) {
  make_current(device_);
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, cuda_event(earlier).event_, event_));
  return 1e-3 * static_cast<double>(milliseconds);
}

// An executable graph.
class CudaRecording final : public RecordingBackend {
 public:
  CudaRecording(Device device, cudaGraphExec_t executable, std::size_t nodes)
      : device_(device), executable_(executable), nodes_(nodes) {}
  ~CudaRecording() override {
    release_on(device_, "cudaGraphExecDestroy", cudaGraphExecDestroy, executable_);
  }
  std::size_t operations() const override { return nodes_; }
  cudaGraphExec_t get() const { return executable_; }

 private:
  Device device_;
  cudaGraphExec_t executable_;
  std::size_t nodes_;
};

// Instantiates the graph and destroys it. Returns null and sets reason if it cannot be instantiated.
std::unique_ptr<RecordingBackend> instantiate(Device device, cudaGraph_t graph, std::string& reason) {
  std::size_t nodes = 0;
  cudaGraphExec_t executable = nullptr;
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &nodes);
  // Without the flag, all nodes have the priority of the stream that the graph is launched on, and
  // communication loses its higher priority. LOCKSTEP_GRAPH_PRIORITIES=0 omits the flag, to measure its
  // effect.
  const char* wanted = std::getenv("LOCKSTEP_GRAPH_PRIORITIES");
  const bool flat = wanted != nullptr && std::string_view(wanted) == "0";
  if (status == cudaSuccess) {
    status = cudaGraphInstantiate(&executable, graph, flat ? 0 : cudaGraphInstantiateFlagUseNodePriority);
  }
  cudaGraphDestroy(graph);
  if (status == cudaSuccess) return std::make_unique<CudaRecording>(device, executable, nodes);
  cudaGetLastError();
  reason = fmt::format("the graph of {} nodes cannot be instantiated: {}", nodes, cudaGetErrorString(status));
  return nullptr;
}

const char* name_of(StreamUse use) {
  return use == StreamUse::compute ? "compute" : use == StreamUse::copy ? "copy" : "communication";
}

class CudaStream final : public StreamBackend {
 public:
  CudaStream(Device device, StreamUse use)
      : device_(device),
        errors_(std::make_shared<HostErrors>(
            current_rank(), fmt::format("{} stream of {}", name_of(use), to_string(device)))) {
    open_device(device);
    int least = 0;
    int greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    // Communication has the highest priority, so that its few blocks are scheduled before compute's many
    // blocks.
    const int priority = use == StreamUse::communication ? greatest : least;
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  ~CudaStream() override { release_on(device_, "cudaStreamDestroy", cudaStreamDestroy, stream_); }

  // Only reports and tests run host tasks on a CUDA stream. A task is on the heap until it has run.
  void enqueue(Task task) override {
    CHECK(capture() == cudaStreamCaptureStatusNone, "host tasks cannot be recorded");
    auto held = std::make_unique<HostCall>(HostCall{task, errors_});
    const auto call = [](void* pointer) {
      const std::unique_ptr<HostCall> owned(static_cast<HostCall*>(pointer));
      owned->errors->run(owned->task);
    };
    CUDA_CHECK(cudaLaunchHostFunc(current(), call, held.get()));
    held.release();
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, current()));
  }
  void record(EventBackend& event) override { cuda_event(event).record(current(), errors_); }
  void record_time(TimedEventBackend& event) override { cuda_event(event).record(current()); }
  void wait(EventBackend& event) override {
    CUDA_CHECK(cudaStreamWaitEvent(current(), cuda_event(event).get(), 0));
  }
  void synchronize() override {
    check_on(errors_->stream(), cudaStreamSynchronize(current()), "cudaStreamSynchronize");
    errors_->rethrow();
  }
  void* native() override { return stream_; }

  bool can_record() const override { return true; }
  void begin_recording() override {
    CUDA_CHECK(cudaStreamBeginCapture(current(), cudaStreamCaptureModeThreadLocal));
  }
  bool recording_is_broken() override { return capture() == cudaStreamCaptureStatusInvalidated; }
  std::unique_ptr<RecordingBackend> end_recording(std::string& reason) override {
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(current(), &graph);
    if (status == cudaSuccess && graph != nullptr) return instantiate(device_, graph, reason);
    cudaGetLastError();
    reason = fmt::format("the capture of the stream failed: {}", cudaGetErrorString(status));
    return nullptr;
  }
  void replay(RecordingBackend& recording) override {
    auto* graph = dynamic_cast<CudaRecording*>(&recording);
    CHECK(graph != nullptr, "the recording was not made on a CUDA device");
    CUDA_CHECK(cudaGraphLaunch(graph->get(), current()));
  }

 private:
  struct HostCall {
    Task task;
    std::shared_ptr<HostErrors> errors;
  };

  cudaStream_t current() {
    make_current(device_);
    return stream_;
  }
  // Also active if the stream has joined the capture of another stream.
  cudaStreamCaptureStatus capture() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(current(), &status));
    return status;
  }

  Device device_;
  std::shared_ptr<HostErrors> errors_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<StreamBackend> make_cuda_stream(Device device, StreamUse use) {
  return std::make_unique<CudaStream>(device, use);
}
std::unique_ptr<EventBackend> make_cuda_event(Device device) { return std::make_unique<CudaEvent>(device); }
std::unique_ptr<TimedEventBackend> make_cuda_timed_event(Device device) {
  return std::make_unique<CudaTimedEvent>(device);
}

}  // namespace lockstep::detail
