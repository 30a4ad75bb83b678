// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's backend API in C++: descriptors that own themselves, attributes whose type follows from the
// value's, errors that name the call. CudnnTarget says what device is planned for: one at hand, or the
// description of one, for which plans can be built on a machine without a GPU or a driver (but not run).
//
// Nothing here is bound to a stream or a thread; a descriptor is used by one thread at a time.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <cudnn_graph.h>

#include "core/error.h"
#include "kernels/cuda/handle.h"

namespace lockstep {

namespace detail {
void check_cudnn(cudnnStatus_t status, const char* call, const char* file, int line);
}
// Throws Error with the failing call and cuDNN's own account of what went wrong.
#define CUDNN_CHECK(call) ::lockstep::detail::check_cudnn((call), #call, __FILE__, __LINE__)

using CudnnHandle = Handle<cudnnHandle_t, cudnnDestroy>;
CudnnHandle make_cudnn_handle();

namespace detail {
template <typename T>
inline constexpr int kCudnnType = -1;
template <>
inline constexpr int kCudnnType<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <>
inline constexpr int kCudnnType<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
inline constexpr int kCudnnType<std::int64_t> = CUDNN_TYPE_INT64;
template <>
inline constexpr int kCudnnType<float> = CUDNN_TYPE_FLOAT;
template <>
inline constexpr int kCudnnType<char> = CUDNN_TYPE_CHAR;
template <>
inline constexpr int kCudnnType<const void*> = CUDNN_TYPE_VOID_PTR;
template <>
inline constexpr int kCudnnType<cudnnConvolutionMode_t> = CUDNN_TYPE_CONVOLUTION_MODE;
template <>
inline constexpr int kCudnnType<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <>
inline constexpr int kCudnnType<cudnnBackendKnobType_t> = CUDNN_TYPE_KNOB_TYPE;
template <>
inline constexpr int kCudnnType<cudnnBackendNumericalNote_t> = CUDNN_TYPE_NUMERICAL_NOTE;
template <>
inline constexpr int kCudnnType<cudnnBackendBehaviorNote_t> = CUDNN_TYPE_BEHAVIOR_NOTE;
}  // namespace detail

// A type of attribute; descriptors are attributes too, by overloads of their own.
template <typename T>
concept CudnnValue = detail::kCudnnType<T>
>= 0;

// Attributes are set, then the descriptor is finalized; only then others may refer to it and its own
// attributes can be read.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);

  template <CudnnValue T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return set_all<T>(name, {&value, 1});
  }
  template <CudnnValue T>
  CudnnDescriptor& set_all(cudnnBackendAttributeName_t name, std::span<const T> values) {
    set_bytes(name, detail::kCudnnType<T>, static_cast<std::int64_t>(values.size()), values.data());
    return *this;
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);

  CudnnDescriptor& finalize();
  // For what cuDNN may refuse: CUDNN_STATUS_SUCCESS, or why not.
  [[nodiscard]] cudnnStatus_t try_finalize();

  template <CudnnValue T>
  T value(cudnnBackendAttributeName_t name) const {
    T found{};
    get_bytes(name, detail::kCudnnType<T>, 1, &found);
    return found;
  }
  // The values an attribute holds, `most` at most: only for some attributes cuDNN tells how many there are.
  template <CudnnValue T>
  std::vector<T> values(cudnnBackendAttributeName_t name, std::size_t most) const {
    std::vector<T> found(most);
    found.resize(get_bytes(name, detail::kCudnnType<T>, most, found.data()));
    return found;
  }
  std::vector<CudnnDescriptor> descriptors(cudnnBackendAttributeName_t name,
                                           cudnnBackendDescriptorType_t type, std::size_t most) const;
  // How many descriptors CUDNN_ATTR_ENGINEHEUR_RESULTS holds.
  std::size_t count_descriptors(cudnnBackendAttributeName_t name) const;

  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

 private:
  void set_bytes(cudnnBackendAttributeName_t name, int type, std::int64_t count, const void* values);
  // How many were found.
  std::size_t get_bytes(cudnnBackendAttributeName_t name, int type, std::size_t most, void* values) const;

  Handle<cudnnBackendDescriptor_t, cudnnBackendDestroyDescriptor> descriptor_;
};

class CudnnTarget {
 public:
  // The handle's device; the handle outlives the target.
  explicit CudnnTarget(cudnnHandle_t handle) : handle_(handle) {}
  // A device by its properties, as CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION writes them.
  static CudnnTarget described(std::string_view json);

  // Tell a descriptor, before it is finalized, what device it is for.
  void set_graph_target(CudnnDescriptor& graph) const;
  void set_heuristics_target(CudnnDescriptor& heuristics) const;
  void set_plan_target(CudnnDescriptor& plan) const;

 private:
  CudnnTarget() = default;

  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<const CudnnDescriptor> properties_;  // exactly when there is no handle
};

}  // namespace lockstep
