// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's backend API for emulated devices. Emulated: graphs of at most one convolution (two-dimensional, in
// any direction, optionally grouped) and of elementwise operations, statistics and sums, on packed
// four-dimensional tensors in fp32, fp16 and bf16. Statuses were taken from cuDNN 9.19 for descriptors and
// plans. Where cuDNN 9.19 crashed or accepted something that its documentation forbids, the emulation returns
// an error.
#include <cstring>
#include <memory>
#include <string>

#include <cudnn_graph.h>

#include "tests/cuda_emulator/libraries/cudnn_execute.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator::cudnn {
namespace {

thread_local std::string last_error;

cudnnStatus_t refused(const char* function, cudnnStatus_t status, const char* why) {
  last_error = std::string("emulated cuDNN: ") + function + ": " + why;
  return status;
}

// The wrapper around every function of the API.
template <typename Work>
cudnnStatus_t answer(const char* function, Work work) {
  if (const int status = injected_fault(function)) {
    return refused(function, static_cast<cudnnStatus_t>(status), "injected fault");
  }
  try {
    work();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    return refused(function, refusal.status, refusal.what());
  } catch (const std::bad_variant_access&) {
    return refused(function, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor is not finalized");
  } catch (const std::bad_alloc&) {
    return refused(function, CUDNN_STATUS_INTERNAL_ERROR, "out of host memory");
  }
}

void require_pointer(const void* pointer) {
  require(pointer != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a pointer is null");
}

// Shares of a context's device memory.
constexpr double kHandleMemory = 1.0 / 8, kPlanMemory = 1.0 / 2048;

// A plan's first execution with a handle allocates device memory: it loads kernels, and some engines need
// additional memory.
void prepare_plan(cudnnHandle_t handle, const void* plan) {
  if (handle->executed.contains(plan)) return;
  require(handle->memory.grow(kPlanMemory) == cudaSuccess, CUDNN_STATUS_EXECUTION_FAILED,
          "the plan's first execution cannot allocate: out of memory, or a stream is being captured");
  handle->executed.insert(plan);
}

void use(cudnnHandle_t handle) {
  require_pointer(handle);
  ++handle->uses;
}

}  // namespace
}  // namespace lockstep::emulator::cudnn

using namespace lockstep::emulator;
using namespace lockstep::emulator::cudnn;

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED:
      return "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER:
      return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER:
      return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED:
      return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND:
      return "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND";
    case CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT:
      return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH:
      return "CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH";
    case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH:
      return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    case CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES:
      return "CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES";
    case CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE:
      return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH:
      return "CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH";
    case CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE:
      return "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN:
      return "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN";
    case CUDNN_STATUS_NOT_SUPPORTED_SHAPE:
      return "CUDNN_STATUS_NOT_SUPPORTED_SHAPE";
    case CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE:
      return "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE";
    case CUDNN_STATUS_NOT_SUPPORTED_LAYOUT:
      return "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT";
    case CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH:
      return "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH";
    case CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING:
      return "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING";
    case CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT:
      return "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT";
    case CUDNN_STATUS_INTERNAL_ERROR:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER:
      return "CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER";
    case CUDNN_STATUS_EXECUTION_FAILED_CUBLAS:
      return "CUDNN_STATUS_EXECUTION_FAILED_CUBLAS";
    case CUDNN_STATUS_EXECUTION_FAILED_CUDART:
      return "CUDNN_STATUS_EXECUTION_FAILED_CUDART";
  }
  return "CUDNN_UNKNOWN_STATUS";
}

void cudnnGetLastErrorString(char* message, std::size_t max_size) {
  if (message == nullptr || max_size == 0) return;
  const std::size_t length = std::min(last_error.size(), max_size - 1);
  std::memcpy(message, last_error.data(), length);
  message[length] = '\0';
  last_error.clear();
}

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int* value) {
  return answer(__func__, [&] {
    require_pointer(value);
    require(type >= MAJOR_VERSION && type <= PATCH_LEVEL, CUDNN_STATUS_BAD_PARAM, "no such property");
    *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  });
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return answer(__func__, [&] {
    require_pointer(handle);
    int device = 0;
    require(cudaGetDevice(&device) == cudaSuccess && cudaFree(nullptr) == cudaSuccess,
            CUDNN_STATUS_NOT_INITIALIZED, "there is no device, or it has no context");
    auto made = std::make_unique<cudnnContext>(device);
    require(made->memory.grow(kHandleMemory) == cudaSuccess, CUDNN_STATUS_NOT_INITIALIZED,
            "out of device memory for the handle");
    *handle = made.release();
  });
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return answer(__func__, [&] {
    use(handle);
    delete handle;
  });
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return answer(__func__, [&] {
    use(handle);
    require(device_of(stream) == handle->device, CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH,
            "the stream and the handle belong to different devices");
    handle->stream = stream;
  });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return answer(__func__, [&] {
    require_pointer(descriptor);
    if (!is_emulated(type)) {
      refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "descriptors of type " + std::to_string(type));
    }
    *descriptor = keep_descriptor(std::make_shared<Descriptor>(Descriptor{.type = type}));
  });
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return answer(__func__, [&] { forget_descriptor(descriptor); });
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return answer(__func__, [&] { finalize(*find_descriptor(descriptor)); });
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* elements) {
  return answer(__func__, [&] { set_attribute(*find_descriptor(descriptor), name, type, count, elements); });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t requested,
                                       std::int64_t* count, void* elements) {
  return answer(__func__,
                [&] { get_attribute(*find_descriptor(descriptor), name, type, requested, count, elements); });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack) {
  return answer(__func__, [&] {
    use(handle);
    int device = -1;
    require(cudaGetDevice(&device) == cudaSuccess && device == handle->device,
            CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the current device is not the handle's device");
    const Execution execution =
        make_execution(*find_descriptor(plan), *find_descriptor(variant_pack), device);
    prepare_plan(handle, execution.plan);
    require(enqueue(handle->stream, "cudnnBackendExecute", [execution] { execution.run(); }) == cudaSuccess,
            CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the stream does not accept work");
  });
}
