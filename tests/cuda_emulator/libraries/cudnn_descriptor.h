// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of the emulated cuDNN: attributes, which are set one by one with the types and counts that the
// API documents, and the body that finalizing creates. A descriptor that refers to another keeps it alive. A
// finalized descriptor never changes, except for those that cuDNN fills in for a caller.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <cudnn_graph.h>

#include "tests/cuda_emulator/libraries/cudnn_graph_parts.h"
#include "tests/cuda_emulator/runtime/runtime.h"

struct cudnnContext {
  int device;
  cudaStream_t stream = nullptr;
  lockstep::emulator::LibraryMemory memory{device};
  std::set<const void*> executed{};  // plans that were executed with this handle
  // Written without synchronization by every use, so that ThreadSanitizer reports two threads that use one
  // handle at the same time: they would also race inside the real library.
  unsigned uses = 0;
};

namespace lockstep::emulator::cudnn {

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::int64_t count;
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<struct Descriptor>> descriptors;  // instead of bytes
};

using Body =
    std::variant<std::monostate, std::shared_ptr<const Tensor>, std::shared_ptr<const ConvolutionSettings>,
                 std::shared_ptr<const PointwiseSettings>, std::shared_ptr<const Operation>,
                 std::shared_ptr<const Graph>, std::shared_ptr<const Target>,
                 std::shared_ptr<const Configuration>, const Plan*>;

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, Attribute> attributes{};
  Body body{};  // set when finalized, for descriptors that need more than their attributes

  // Copies an attribute's values. Throws Refusal if it was not set.
  template <typename T>
  std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const Attribute& attribute = set_attribute(name);
    const T* values = reinterpret_cast<const T*>(attribute.bytes.data());
    return std::vector<T>(values, values + attribute.count);
  }
  template <typename T>
  T one(cudnnBackendAttributeName_t name) const {
    return all<T>(name).front();
  }
  template <typename T>
  T one_or(cudnnBackendAttributeName_t name, T otherwise) const {
    return has(name) ? one<T>(name) : otherwise;
  }
  // An attribute that may be set as float or double.
  double number_or(cudnnBackendAttributeName_t name, double otherwise) const;
  bool has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  const std::vector<std::shared_ptr<Descriptor>>& referred(cudnnBackendAttributeName_t name) const {
    return set_attribute(name).descriptors;
  }
  // The body of the attribute's only descriptor.
  template <typename T>
  std::shared_ptr<const T> referred_to(cudnnBackendAttributeName_t name) const {
    return std::get<std::shared_ptr<const T>>(referred(name).front()->body);
  }
  template <typename T>
  std::shared_ptr<const T> as() const {
    return std::get<std::shared_ptr<const T>>(body);
  }

  template <typename T>
  void put(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t of_type,
           const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    attributes[name] = {
        of_type, static_cast<std::int64_t>(values.size()), {bytes, bytes + values.size() * sizeof(T)}, {}};
  }
  void put(cudnnBackendAttributeName_t name, std::vector<std::shared_ptr<Descriptor>> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    attributes[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, count, {}, std::move(values)};
  }

 private:
  const Attribute& set_attribute(cudnnBackendAttributeName_t name) const;
};

// Registers a descriptor until the caller destroys it.
cudnnBackendDescriptor_t keep_descriptor(std::shared_ptr<Descriptor> descriptor);
// Throws Refusal if it is not a registered descriptor.
std::shared_ptr<Descriptor> find_descriptor(cudnnBackendDescriptor_t descriptor);
void forget_descriptor(cudnnBackendDescriptor_t descriptor);

bool is_emulated(cudnnBackendDescriptorType_t type);
void set_attribute(Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::int64_t count, const void* elements);
void get_attribute(Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::int64_t requested, std::int64_t* count, void* elements);
// Throws Refusal if a required attribute is missing.
void require_attributes(const Descriptor& descriptor);
// Defined in cudnn_finalize.cpp.
void finalize(Descriptor& descriptor);

}  // namespace lockstep::emulator::cudnn
