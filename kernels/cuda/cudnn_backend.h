// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's backend API in C++: owning descriptors, attributes whose type is derived from the value's, and
// errors that name the call. CudnnTarget is the device that is planned for: a present one, or one described
// by its properties, for which plans can be built (but not run) on a machine without a GPU or a driver.
//
// No object is bound to a stream or a thread; a descriptor must be used by one thread at a time.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cudnn_graph.h>

#include "core/error.h"
#include "kernels/cuda/handle.h"

namespace lockstep {

namespace detail {
void check_cudnn(cudnnStatus_t status, const char* call, const char* file, int line);
}
// Throws Error with the failing call and cuDNN's description of the error.
#define CUDNN_CHECK(call) ::lockstep::detail::check_cudnn((call), #call, __FILE__, __LINE__)

// cuDNN's details on the last error; empty if it has none.
std::string last_cudnn_error();

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

// A type of attribute values. Descriptors are also attribute values, through separate overloads.
template <typename T>
concept CudnnValue = detail::kCudnnType<T>
>= 0;

// A descriptor. First its attributes are set, then it is finalized; only then other descriptors may refer to
// it and its attributes can be read.
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
  // Like finalize(), for descriptors that cuDNN may reject: returns the status instead of throwing.
  [[nodiscard]] cudnnStatus_t try_finalize();

  template <CudnnValue T>
  T value(cudnnBackendAttributeName_t name) const {
    T found{};
    get_bytes(name, detail::kCudnnType<T>, 1, &found);
    return found;
  }
  // The values of an attribute, at most `most`: cuDNN reports the number of values only for some attributes.
  template <CudnnValue T>
  std::vector<T> values(cudnnBackendAttributeName_t name, std::size_t most) const {
    std::vector<T> found(most);
    found.resize(get_bytes(name, detail::kCudnnType<T>, most, found.data()));
    return found;
  }
  std::vector<CudnnDescriptor> descriptors(cudnnBackendAttributeName_t name,
                                           cudnnBackendDescriptorType_t type, std::size_t most) const;
  // The number of descriptors in an attribute such as CUDNN_ATTR_ENGINEHEUR_RESULTS.
  std::size_t count_descriptors(cudnnBackendAttributeName_t name) const;

  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

 private:
  void set_bytes(cudnnBackendAttributeName_t name, int type, std::int64_t count, const void* values);
  // Returns the number of values written.
  std::size_t get_bytes(cudnnBackendAttributeName_t name, int type, std::size_t most, void* values) const;

  Handle<cudnnBackendDescriptor_t, cudnnBackendDestroyDescriptor> descriptor_;
};

class CudnnTarget {
 public:
  // The handle's device; the handle must outlive the target.
  explicit CudnnTarget(cudnnHandle_t handle) : handle_(handle) {}
  // A device described by its properties in the format of CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION.
  static CudnnTarget described(std::string_view json);

  // Set the device of a descriptor. Call before it is finalized.
  void set_graph_target(CudnnDescriptor& graph) const;
  void set_heuristics_target(CudnnDescriptor& heuristics) const;
  void set_plan_target(CudnnDescriptor& plan) const;

 private:
  CudnnTarget() = default;

  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<const CudnnDescriptor> properties_;  // set if and only if there is no handle
};

}  // namespace lockstep
