// SPDX-License-Identifier: Apache-2.0
//
// cuDNN descriptors for the tests of the emulated cuDNN. The status of every call is checked.
#pragma once

#include <array>
#include <vector>

#include <cudnn_graph.h>
#include <gtest/gtest.h>

#include "kernels/affine.h"

namespace lockstep {

using FourSizes = std::array<std::int64_t, 4>;

// An owned descriptor.
class CudnnObject {
 public:
  explicit CudnnObject(cudnnBackendDescriptorType_t type) {
    EXPECT_EQ(cudnnBackendCreateDescriptor(type, &handle_), CUDNN_STATUS_SUCCESS);
  }
  CudnnObject(CudnnObject&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  ~CudnnObject() {
    if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  }

  template <typename T>
  cudnnStatus_t try_set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        const std::vector<T>& values) {
    return cudnnBackendSetAttribute(handle_, name, type, static_cast<std::int64_t>(values.size()),
                                    values.data());
  }
  cudnnStatus_t try_set(cudnnBackendAttributeName_t name, const std::vector<const CudnnObject*>& values) {
    std::vector<cudnnBackendDescriptor_t> handles;
    for (const CudnnObject* value : values) handles.push_back(value->get());
    return try_set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, handles);
  }
  template <typename T>
  CudnnObject& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   const std::vector<T>& values) {
    EXPECT_EQ(try_set(name, type, values), CUDNN_STATUS_SUCCESS) << name;
    return *this;
  }
  CudnnObject& set(cudnnBackendAttributeName_t name, const std::vector<const CudnnObject*>& values) {
    EXPECT_EQ(try_set(name, values), CUDNN_STATUS_SUCCESS) << name;
    return *this;
  }
  cudnnStatus_t finalize() { return cudnnBackendFinalize(handle_); }
  CudnnObject finalized() && {
    EXPECT_EQ(finalize(), CUDNN_STATUS_SUCCESS) << last_error();
    return std::move(*this);
  }

  template <typename T>
  std::vector<T> get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     std::size_t most = 64) const {
    // char instead of bool, because std::vector<bool> has no data().
    std::vector<T> values(most);
    std::int64_t count = -1;
    EXPECT_EQ(
        cudnnBackendGetAttribute(handle_, name, type, static_cast<std::int64_t>(most), &count, values.data()),
        CUDNN_STATUS_SUCCESS)
        << last_error();
    values.resize(static_cast<std::size_t>(count));
    return values;
  }
  std::vector<CudnnObject> get(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                               std::size_t most = 64) const {
    std::vector<CudnnObject> found;
    std::vector<cudnnBackendDescriptor_t> handles;
    for (std::size_t i = 0; i < most; ++i) handles.push_back(found.emplace_back(type).get());
    std::int64_t count = -1;
    EXPECT_EQ(cudnnBackendGetAttribute(handle_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       static_cast<std::int64_t>(most), &count, handles.data()),
              CUDNN_STATUS_SUCCESS)
        << last_error();
    while (found.size() > static_cast<std::size_t>(count)) found.pop_back();
    return found;
  }
  cudnnBackendDescriptor_t get() const { return handle_; }

  static std::string last_error() {
    std::array<char, 512> text{};
    cudnnGetLastErrorString(text.data(), text.size());
    return text.data();
  }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

inline FourSizes channels_last_strides(const FourSizes& s) {
  return {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
}
inline FourSizes plain_strides(const FourSizes& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }

struct TensorOptions {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool is_virtual = false;
  bool plain = false;  // N, C, H, W instead of channels last
  std::int64_t alignment = 16;
};
// Returns a tensor descriptor that is not yet finalized.
inline CudnnObject open_tensor(std::int64_t id, const FourSizes& sizes, const TensorOptions& options = {}) {
  const FourSizes strides = options.plain ? plain_strides(sizes) : channels_last_strides(sizes);
  CudnnObject tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector{id})
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{options.type})
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::vector{options.alignment})
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::vector(sizes.begin(), sizes.end()))
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::vector(strides.begin(), strides.end()))
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, std::vector<char>{options.is_virtual});
  return tensor;
}
inline CudnnObject tensor(std::int64_t id, const FourSizes& sizes, const TensorOptions& options = {}) {
  return open_tensor(id, sizes, options).finalized();
}

inline CudnnObject settings(const ConvolutionShape& s) {
  const auto both = [](std::int64_t value) { return std::vector{value, value}; };
  CudnnObject convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::vector{std::int64_t{2}})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT})
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
           std::vector{CUDNN_CROSS_CORRELATION})
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, both(s.padding))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, both(s.padding))
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, both(s.dilation))
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, both(s.stride));
  return std::move(convolution).finalized();
}

inline FourSizes x_sizes(const ConvolutionShape& s) {
  return {s.batch, s.in_channels, s.in_height, s.in_width};
}
inline FourSizes w_sizes(const ConvolutionShape& s) {
  return {s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel};
}
inline FourSizes y_sizes(const ConvolutionShape& s) {
  return {s.batch, s.out_channels, s.out_height(), s.out_width()};
}

constexpr std::int64_t kXId = 1, kWId = 2, kYId = 3;

// direction: 0 forward, 1 backward data, 2 backward filter. The attributes of the three operations are
// numbered in the same way.
inline CudnnObject open_convolution(int direction, const CudnnObject& of, const CudnnObject& x,
                                    const CudnnObject& w, const CudnnObject& y, float alpha = 1,
                                    float beta = 0) {
  constexpr std::array kTypes = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                 CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                 CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR};
  // alpha, beta, settings, x, w, y
  constexpr std::array<std::array<int, 6>, 3> kNames = {
      {{700, 701, 702, 704, 703, 705}, {706, 707, 708, 710, 709, 711}, {712, 713, 714, 716, 715, 717}}};
  const auto name = [&](std::size_t i) {
    return static_cast<cudnnBackendAttributeName_t>(kNames[static_cast<std::size_t>(direction)][i]);
  };
  CudnnObject operation(kTypes[static_cast<std::size_t>(direction)]);
  operation.set(name(0), CUDNN_TYPE_FLOAT, std::vector{alpha})
      .set(name(1), CUDNN_TYPE_FLOAT, std::vector{beta})
      .set(name(2), {&of})
      .set(name(3), {&x})
      .set(name(4), {&w})
      .set(name(5), {&y});
  return operation;
}

struct ProblemOptions {
  TensorOptions tensors = {};
  float alpha = 1, beta = 0;
};
inline CudnnObject convolution_operation(int direction, const ConvolutionShape& s,
                                         const ProblemOptions& options = {}) {
  return open_convolution(direction, settings(s), tensor(kXId, x_sizes(s), options.tensors),
                          tensor(kWId, w_sizes(s), options.tensors),
                          tensor(kYId, y_sizes(s), options.tensors), options.alpha, options.beta)
      .finalized();
}

inline CudnnObject open_graph(const std::vector<const CudnnObject*>& operations, cudnnHandle_t handle) {
  CudnnObject graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
  if (handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, std::vector{handle});
  return graph;
}

inline CudnnObject open_heuristics(const CudnnObject& graph, cudnnBackendHeurMode_t mode) {
  CudnnObject heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, {&graph})
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, std::vector{mode});
  return heuristics;
}
inline std::vector<CudnnObject> proposals(const CudnnObject& graph,
                                          cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A) {
  const CudnnObject heuristics = open_heuristics(graph, mode).finalized();
  std::int64_t count = 0;
  EXPECT_EQ(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
            CUDNN_STATUS_SUCCESS);
  return heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                        static_cast<std::size_t>(count));
}
inline CudnnObject engine_of(const CudnnObject& configuration) {
  return std::move(
      configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1).front());
}
inline std::int64_t index_of(const CudnnObject& configuration) {
  return engine_of(configuration)
      .get<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1)
      .front();
}
inline bool notes(const CudnnObject& configuration, cudnnBackendNumericalNote_t note) {
  const auto all =
      engine_of(configuration)
          .get<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE);
  return std::count(all.begin(), all.end(), note) > 0;
}

inline CudnnObject open_plan(const CudnnObject& configuration, cudnnHandle_t handle) {
  CudnnObject plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {&configuration})
      .set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, std::vector{handle});
  return plan;
}
inline std::size_t workspace_of(const CudnnObject& plan) {
  return static_cast<std::size_t>(
      plan.get<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1).front());
}

inline CudnnObject open_pack(const std::vector<std::int64_t>& ids, const std::vector<void*>& pointers,
                             void* workspace) {
  CudnnObject pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids)
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector{workspace});
  return pack;
}

// A handle and a new stream on the current device.
struct OnDevice {
  OnDevice() {
    EXPECT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    EXPECT_EQ(cudnnSetStream(handle, stream), CUDNN_STATUS_SUCCESS);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    cudaStreamSynchronize(stream);
    cudnnDestroy(handle);
    cudaStreamDestroy(stream);
  }

  cudnnStatus_t run(const CudnnObject& plan, const std::vector<std::int64_t>& ids,
                    const std::vector<void*>& pointers, void* workspace) const {
    const CudnnObject pack = open_pack(ids, pointers, workspace).finalized();
    return cudnnBackendExecute(handle, plan.get(), pack.get());
  }

  cudnnHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
};

}  // namespace lockstep
