// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of the emulated cuDNN: attributes that are set one by one, in the types and numbers the API
// states, and what finalizing makes of them. A descriptor that refers to another keeps that alive; what was
// finalized never changes, but for those that cuDNN fills in for a caller.
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
  std::set<const void*> executed{};  // plans
  // Two threads that use one handle at a time race for it, as they would inside the real library: this is for
  // ThreadSanitizer to see.
  unsigned uses = 0;
};

namespace lockstep::emulator::cudnn {

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::int64_t count;
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<struct Descriptor>> descriptors;  // in place of bytes
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
  Body body{};  // once finalized, for those that need more than their attributes

  // Copies of an attribute's values; throws Refusal when it was not set.
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
  // float or double, as it was given.
  double number_or(cudnnBackendAttributeName_t name, double otherwise) const;
  bool has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  const std::vector<std::shared_ptr<Descriptor>>& referred(cudnnBackendAttributeName_t name) const {
    return set_attribute(name).descriptors;
  }
  // What an attribute's only descriptor was finalized to; the body of it.
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

// All descriptors that callers have and have not destroyed.
cudnnBackendDescriptor_t keep_descriptor(std::shared_ptr<Descriptor> descriptor);
// Throws Refusal for what is none.
std::shared_ptr<Descriptor> find_descriptor(cudnnBackendDescriptor_t descriptor);
void forget_descriptor(cudnnBackendDescriptor_t descriptor);

bool is_emulated(cudnnBackendDescriptorType_t type);
void set_attribute(Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::int64_t count, const void* elements);
void get_attribute(Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::int64_t requested, std::int64_t* count, void* elements);
// Throws Refusal when a required attribute is missing.
void require_attributes(const Descriptor& descriptor);
// cudnn_finalize.cpp.
void finalize(Descriptor& descriptor);

}  // namespace lockstep::emulator::cudnn
