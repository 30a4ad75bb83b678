// SPDX-License-Identifier: Apache-2.0
//
// StateVisitor: saves and restores all state that a step depends on and training changes. Each owner of state
// has one visit_state(StateVisitor&), which passes every piece to the visitor by name; exports, digests and
// checkpoints are visitors and know nothing else of the owners. State that can be derived from other pieces
// (half-precision copies of weights) is not visited: the owner recomputes it after a visitor that writes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "core/tensor/parameter.h"

namespace lockstep {

enum class StateScope {
  replicated,  // the same bits on every rank
  per_rank,    // each rank has its own
  sharded,     // each rank has one part of the whole
};

// fp32 in memory of the owner's device, or in host memory. Files and copies hold it plain: dense and
// row-major, as layout.shape() says.
struct StateTensor {
  std::string name;  // PyTorch's where PyTorch has one: "layer1.0.conv1.weight"
  Layout layout;
  float* value = nullptr;
  // Elements in memory: the layout's and, in a flat arena, the zeros up to the next tensor.
  std::int64_t elements = 0;
  // Updated by forward, not by gradients: batch norm's running mean and variance.
  bool is_statistic = false;
};

// Points to host memory; valid during the call.
using StateValue = std::variant<std::int64_t*, double*>;

// Each name is visited once per scope. A per-rank and a replicated tensor may share a name, as batch norm's
// running statistics do: if the per-rank one is not available (for example in a file from another number of
// ranks), it starts from the replicated one.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  // True if it changes the pieces it visits. The owner then updates the state derived from them.
  virtual bool writes() const = 0;
  // False: writes() and has no such value, which then must not be visited.
  virtual bool has_value(const std::string&, StateScope) const { return true; }
  // No work on the tensor may be pending; the visitor's own work on it is done when this returns.
  virtual void tensor(const StateTensor& tensor, StateScope scope) = 0;
  virtual void value(const std::string& name, StateScope scope, StateValue value) = 0;
};

// Visits values in the flat order of the parameters, each with a name like "conv1.weight" + suffix.
inline void visit_flat(StateVisitor& visitor, std::span<const Parameter> parameters, std::span<float> values,
                       const std::string& suffix, StateScope scope) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    visitor.tensor({.name = parameters[i].name + suffix,
                    .layout = parameters[i].layout,
                    .value = values.data() + parameters[i].offset,
                    .elements = flat_elements(parameters, i, static_cast<std::int64_t>(values.size()))},
                   scope);
}

}  // namespace lockstep
