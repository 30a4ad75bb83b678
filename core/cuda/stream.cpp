// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <mutex>

#include "core/backend_factories.h"
#include "core/cuda/check.h"
#include "core/log.h"

namespace lockstep::detail {
namespace {

// What a stream's host tasks threw: an exception must not leave through CUDA's callback. Shared by the
// stream, its events and the tasks still to run.
class HostErrors {
 public:
  explicit HostErrors(int rank) : rank_(rank) {}
  // After an error nothing runs any more.
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
};

class CudaEvent final : public EventBackend {
 public:
  explicit CudaEvent(Device device) {
    require_cuda_device(device);
    const DeviceGuard guard(device);
    CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~CudaEvent() override {
    if (const cudaError_t status = cudaEventDestroy(event_);
        status != cudaSuccess && !driver_is_gone(status)) {
      log::error("cudaEventDestroy: {}", cudaGetErrorString(status));
    }
  }

  bool ready() override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // no error; the check of the next kernel launch must not find it
      return false;
    }
    check_cuda(status, "cudaEventQuery(event_)", __FILE__, __LINE__);
    rethrow();
    return true;
  }
  void synchronize() override {
    CUDA_CHECK(cudaEventSynchronize(event_));
    rethrow();
  }
  void record(cudaStream_t stream, std::shared_ptr<HostErrors> errors) {
    CUDA_CHECK(cudaEventRecord(event_, stream));
    const std::lock_guard lock(mutex_);
    errors_ = std::move(errors);
  }
  cudaEvent_t get() const { return event_; }

 private:
  void rethrow() {
    std::shared_ptr<HostErrors> errors;
    {
      const std::lock_guard lock(mutex_);
      errors = errors_;
    }
    if (errors) errors->rethrow();
  }

  cudaEvent_t event_ = nullptr;
  std::mutex mutex_;
  std::shared_ptr<HostErrors> errors_;  // of the stream that recorded last
};

CudaEvent& cuda_event(EventBackend& event) {
  auto* found = dynamic_cast<CudaEvent*>(&event);
  CHECK(found != nullptr, "the event belongs to another device than the CUDA stream");
  return *found;
}

const char* name_of(StreamUse use) {
  return use == StreamUse::compute ? "compute" : use == StreamUse::copy ? "copy" : "communication";
}

class CudaStream final : public StreamBackend {
 public:
  CudaStream(Device device, StreamUse use) : device_(device), use_(use) {
    require_cuda_device(device);
    const DeviceGuard guard(device);
    int least = 0;
    int greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    // Communication first: its few blocks must find room among compute's many.
    const int priority = use == StreamUse::communication ? greatest : least;
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  ~CudaStream() override {
    if (const cudaError_t status = cudaStreamDestroy(stream_);
        status != cudaSuccess && !driver_is_gone(status)) {
      log::error("cudaStreamDestroy: {}", cudaGetErrorString(status));
    }
  }

  // Host work on a CUDA stream is for reports and tests; its task lives on the heap until it has run.
  void enqueue(Task task) override {
    auto held = std::make_unique<HostCall>(HostCall{task, errors_});
    const auto call = [](void* pointer) {
      const std::unique_ptr<HostCall> owned(static_cast<HostCall*>(pointer));
      owned->errors->run(owned->task);
    };
    CUDA_CHECK(cudaLaunchHostFunc(stream_, call, held.get()));
    held.release();
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }
  void record(EventBackend& event) override { cuda_event(event).record(stream_, errors_); }
  void wait(EventBackend& event) override {
    CUDA_CHECK(cudaStreamWaitEvent(stream_, cuda_event(event).get(), 0));
  }
  // Kernels fail long after their launch: which stream they were on is all that is known here.
  void synchronize() override {
    if (const cudaError_t status = cudaStreamSynchronize(stream_); status != cudaSuccess) {
      const std::string call =
          fmt::format("cudaStreamSynchronize, {} stream of {},", name_of(use_), to_string(device_));
      check_cuda(status, call.c_str(), __FILE__, __LINE__);
    }
    errors_->rethrow();
  }
  void* native() override { return stream_; }

 private:
  struct HostCall {
    Task task;
    std::shared_ptr<HostErrors> errors;
  };

  Device device_;
  StreamUse use_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<HostErrors> errors_ = std::make_shared<HostErrors>(current_rank());
};

}  // namespace

std::unique_ptr<StreamBackend> make_cuda_stream(Device device, StreamUse use) {
  return std::make_unique<CudaStream>(device, use);
}
std::unique_ptr<EventBackend> make_cuda_event(Device device) { return std::make_unique<CudaEvent>(device); }

}  // namespace lockstep::detail
