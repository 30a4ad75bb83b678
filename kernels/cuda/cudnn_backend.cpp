// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cudnn_backend.h"

#include <algorithm>
#include <array>

namespace lockstep {

std::string last_cudnn_error() {
  std::array<char, 2048> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  text.back() = '\0';
  return text.data();
}

namespace detail {
void check_cudnn(cudnnStatus_t status, const char* call, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(exit_code::failed,
              fmt::format("{}:{}: {} failed on {}: {}: {}", file, line, call, current_place(),
                          cudnnGetErrorString(status), last_cudnn_error()));
}
}  // namespace detail

CudnnHandle make_cudnn_handle() {
  cudnnHandle_t handle = nullptr;
  CUDNN_CHECK(cudnnCreate(&handle));
  return CudnnHandle(handle);
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  CUDNN_CHECK(cudnnBackendCreateDescriptor(type, &descriptor));
  descriptor_.reset(descriptor);
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  const cudnnBackendDescriptor_t descriptor = value.get();
  set_bytes(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor);
  return *this;
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  CUDNN_CHECK(cudnnBackendFinalize(get()));
  return *this;
}

cudnnStatus_t CudnnDescriptor::try_finalize() { return cudnnBackendFinalize(get()); }

std::vector<CudnnDescriptor> CudnnDescriptor::descriptors(cudnnBackendAttributeName_t name,
                                                          cudnnBackendDescriptorType_t type,
                                                          std::size_t most) const {
  // cuDNN fills the descriptors that the caller creates.
  std::vector<CudnnDescriptor> found;
  std::vector<cudnnBackendDescriptor_t> pointers;
  for (std::size_t i = 0; i < most; ++i) pointers.push_back(found.emplace_back(type).get());
  const std::size_t filled = get_bytes(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, pointers.data());
  found.erase(found.begin() + static_cast<std::ptrdiff_t>(filled), found.end());
  return found;
}

std::size_t CudnnDescriptor::count_descriptors(cudnnBackendAttributeName_t name) const {
  std::int64_t count = 0;
  CUDNN_CHECK(cudnnBackendGetAttribute(get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  return static_cast<std::size_t>(count);
}

void CudnnDescriptor::set_bytes(cudnnBackendAttributeName_t name, int type, std::int64_t count,
                                const void* values) {
  CUDNN_CHECK(
      cudnnBackendSetAttribute(get(), name, static_cast<cudnnBackendAttributeType_t>(type), count, values));
}

std::size_t CudnnDescriptor::get_bytes(cudnnBackendAttributeName_t name, int type, std::size_t most,
                                       void* values) const {
  std::int64_t found = 0;
  CUDNN_CHECK(cudnnBackendGetAttribute(get(), name, static_cast<cudnnBackendAttributeType_t>(type),
                                       static_cast<std::int64_t>(most), &found, values));
  return std::min(static_cast<std::size_t>(found), most);
}

CudnnTarget CudnnTarget::described(std::string_view json) {
  CudnnDescriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set_all<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json).finalize();
  CudnnTarget target;
  target.properties_ = std::make_shared<const CudnnDescriptor>(std::move(properties));
  return target;
}

void CudnnTarget::set_graph_target(CudnnDescriptor& graph) const {
  if (handle_) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle_);
}

void CudnnTarget::set_heuristics_target(CudnnDescriptor& heuristics) const {
  if (properties_) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties_);
}

void CudnnTarget::set_plan_target(CudnnDescriptor& plan) const {
  if (handle_) {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_);
  } else {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *properties_);
  }
}

}  // namespace lockstep
