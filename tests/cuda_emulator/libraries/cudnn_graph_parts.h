// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the emulated cuDNN's finalized descriptors: tensors, operations, graphs of operations, the
// device that a graph is planned for, engine configurations and plans.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <cudnn_graph.h>

#include "tests/cuda_emulator/libraries/convolve.h"
#include "tests/cuda_emulator/libraries/elements.h"

namespace lockstep::emulator::cudnn {

// A call's error status and the text for cudnnGetLastErrorString.
struct Refusal : std::runtime_error {
  Refusal(cudnnStatus_t reason, const std::string& text) : std::runtime_error(text), status(reason) {}
  cudnnStatus_t status;
};
inline void require(bool holds, cudnnStatus_t status, const std::string& text) {
  if (!holds) throw Refusal(status, text);
}
// For features of cuDNN that the emulator lacks. Also prints a line on stderr.
[[noreturn]] void refuse_unemulated(cudnnStatus_t status, const std::string& what);

using Sizes = std::array<std::int64_t, 4>;  // N, C, H, W or K, C, R, S

struct Tensor {
  std::int64_t id;
  Element type;
  Sizes sizes{};
  Sizes strides{};
  std::int64_t alignment;
  bool is_virtual;

  std::int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(type); }
  bool operator==(const Tensor&) const = default;
};
using TensorPointer = std::shared_ptr<const Tensor>;

struct ConvolutionSettings {
  std::array<std::int64_t, 2> before, after, stride, dilation;
};
struct PointwiseSettings {
  cudnnPointwiseMode_t mode;
  float lowest, highest, slope_below;  // of RELU

  bool is_binary() const;
};

enum class OperationKind { convolution, pointwise, statistics, reduction };

struct Operation {
  OperationKind kind;
  std::vector<TensorPointer> inputs{};   // convolution: the two tensors it reads, in the order x, w, y
  std::vector<TensorPointer> outputs{};  // statistics: sums, sums of squares
  float alpha = 1, beta = 0;             // pointwise: factors of its inputs
  Direction direction = Direction::forward;
  ConvolutionSizes sizes{};
  PointwiseSettings pointwise{};
};

struct Graph {
  std::vector<Operation> operations;         // each after the operations whose results it reads
  std::map<std::int64_t, TensorPointer> io;  // tensors that are not virtual
  int device = -1;                           // the device of the graph's handle

  // Null unless the graph has exactly one convolution.
  const Operation* convolution() const;
};

// A device to plan for.
struct Target {
  int compute_capability;  // times 100
  int multiprocessors;
  int device;  // -1: given only by a description
};

struct Configuration {
  std::shared_ptr<const Graph> graph;
  Target target;
  std::int64_t engine;
  std::map<cudnnBackendKnobType_t, std::int64_t> knobs;
};

// The number of plans finalized in this process.
std::uint64_t plans_built();

// Is never destroyed: work in a stream may need it after its descriptor is destroyed, and ThreadSanitizer
// would see a reference count as synchronization, which CUDA does not provide.
struct Plan {
  std::shared_ptr<const Configuration> configuration;
  int device;  // -1: given only by a description
  std::size_t workspace_bytes;
};

}  // namespace lockstep::emulator::cudnn
