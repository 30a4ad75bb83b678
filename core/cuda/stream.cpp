// SPDX-License-Identifier: Apache-2.0
#include "core/backend_factories.h"
#include "core/cuda/check.h"
#include "core/log.h"

namespace lockstep::detail {
namespace {

class CudaEvent final : public EventBackend {
 public:
  explicit CudaEvent(Device device) {
    const DeviceGuard guard(device);
    CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~CudaEvent() override {
    if (const cudaError_t status = cudaEventDestroy(event_); status != cudaSuccess && !driver_is_gone(status)) {
      log::error("cudaEventDestroy: {}", cudaGetErrorString(status));
    }
  }

  bool ready() override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    CUDA_CHECK(status);
    return true;
  }
  void synchronize() override { CUDA_CHECK(cudaEventSynchronize(event_)); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

cudaEvent_t native_of(EventBackend& event) { return static_cast<CudaEvent&>(event).get(); }

class CudaStream final : public StreamBackend {
 public:
  CudaStream(Device device, StreamUse use) {
    const DeviceGuard guard(device);
    int least = 0;
    int greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    // Communication first: its few blocks must find room among compute's many.
    const int priority = use == StreamUse::communication ? greatest : least;
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  ~CudaStream() override {
    if (const cudaError_t status = cudaStreamDestroy(stream_); status != cudaSuccess && !driver_is_gone(status)) {
      log::error("cudaStreamDestroy: {}", cudaGetErrorString(status));
    }
  }

  // Host work on a CUDA stream is for reports and tests; its task lives on the heap until it has run.
  void enqueue(Task task) override {
    auto held = std::make_unique<Task>(task);
    const auto call = [](void* pointer) {
      const std::unique_ptr<Task> owned(static_cast<Task*>(pointer));
      (*owned)();
    };
    CUDA_CHECK(cudaLaunchHostFunc(stream_, call, held.get()));
    held.release();
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }
  void record(EventBackend& event) override { CUDA_CHECK(cudaEventRecord(native_of(event), stream_)); }
  void wait(EventBackend& event) override { CUDA_CHECK(cudaStreamWaitEvent(stream_, native_of(event), 0)); }
  void synchronize() override { CUDA_CHECK(cudaStreamSynchronize(stream_)); }
  void* native() override { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<StreamBackend> make_cuda_stream(Device device, StreamUse use) {
  return std::make_unique<CudaStream>(device, use);
}
std::unique_ptr<EventBackend> make_cuda_event(Device device) { return std::make_unique<CudaEvent>(device); }

}  // namespace lockstep::detail
