// SPDX-License-Identifier: Apache-2.0
//
// Parameter: one trained tensor, shared by the network, the gradient buckets and the optimizer. They use one
// flat order: a parameter's elements are [offset, offset + layout.physical_elements()) of the values, of the
// gradients and of each optimizer state. Parameters with half-precision gradients come first; within each
// type, the order is that in which backward finishes gradients.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/tensor/layout.h"

namespace lockstep {

struct Parameter {
  std::string name;                  // PyTorch's: "layer1.0.conv1.weight"
  Layout layout;                     // of the value, which is fp32; its shape is PyTorch's
  DType gradient_type = DType::f32;  // of the gradient and of the weights that layers read
  std::int64_t offset = 0;  // first element in the flat order, aligned to kAlignment bytes in both types
  float* value = nullptr;   // into the network's parameter arena
  const void* weights = nullptr;  // read by layers: the value, or its copy in gradient_type
  void* gradient = nullptr;       // into the GradientArena (comm/); null until attached
  float l2 = 0;          // factor of an L2 penalty, l2 * sum of squares: the optimizer adds 2 * l2 * value
  bool of_norm = false;  // scale or shift of a norm, whatever its shape
  // The exchange (comm/) has applied momentum already; the optimizer adds none.
  bool gradient_has_momentum = false;
};

// A range of the flat order in memory of one type.
struct FlatRange {
  DType type = DType::f32;
  std::int64_t begin = 0;  // elements
  std::int64_t end = 0;
  void* data = nullptr;  // of element begin

  std::int64_t count() const { return end - begin; }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(type); }
  void* at(std::int64_t element) const {
    return static_cast<std::byte*>(data) + (element - begin) * static_cast<std::int64_t>(size_of(type));
  }
  // The elements, in host memory. Throws if T does not match the type.
  template <typename T>
  std::span<T> as() const {
    return Tensor{data, {count()}, type}.as<T>();
  }
};

// How a gradient is written: the first micro-batch of a step overwrites, later ones accumulate.
enum class Write { overwrite, accumulate };

// Elements that the parameter takes in a flat order of `all` elements, including the padding after it.
inline std::int64_t flat_elements(std::span<const Parameter> parameters, std::size_t index,
                                  std::int64_t all) {
  const std::int64_t end = index + 1 < parameters.size() ? parameters[index + 1].offset : all;
  return end - parameters[index].offset;
}

// Called by the network, during backward, after it has enqueued the work that makes a parameter's gradient
// final. index is the parameter's position in Network::parameters().
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void gradient_ready(std::size_t index) = 0;
};

// Called by the network, during forward, before it enqueues work that reads a parameter. The implementation
// enqueues here what must be done to the parameter first.
class ParameterGate {
 public:
  virtual ~ParameterGate() = default;
  virtual void parameter_needed(std::size_t index) = 0;
};

}  // namespace lockstep
