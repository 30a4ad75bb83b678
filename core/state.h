// SPDX-License-Identifier: Apache-2.0
//
// StateVisitor: how everything a step depends on, and training changes, leaves the program and comes back.
// Whoever owns some of it has one visit_state(StateVisitor&), which shows each piece by name; exports,
// digests and checkpoints are visitors and know nothing else of the owners. What can be made again from other
// pieces (half copies of weights) is not shown: the owner makes it after a visitor that writes.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "core/layout.h"

namespace lockstep {

enum class StateScope {
  replicated,  // the same bits on every rank
  per_rank,    // each rank has its own
  sharded,     // each rank has its share of one whole
};

// fp32 in memory of the owner's device. Outside it is plain: dense and row-major, as layout.shape() says.
struct StateTensor {
  std::string name;  // PyTorch's where PyTorch has one: "layer1.0.conv1.weight"
  Layout layout;
  float* value = nullptr;
  // Of its memory: those of the layout and, in a flat arena, the zeros up to the next tensor.
  std::int64_t elements = 0;
  // Moved by what passes through the network, not by gradients: batch norm's running mean and variance.
  bool is_statistic = false;
};

// In host memory, for the time of the call.
using StateValue = std::variant<std::int64_t*, double*>;

// A name is shown once in each scope. A rank's own and a replicated tensor may share one, as batch norm's
// running statistics do: where the rank's own is not known (a file of another number of ranks, say), it
// starts from the replicated one.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  // Whether it changes what it is shown. The owner then puts right what follows from it.
  virtual bool writes() const = 0;
  // No work on the tensor may be under way; what the visitor does to it is done when this returns.
  virtual void tensor(const StateTensor& tensor, StateScope scope) = 0;
  virtual void value(const std::string& name, StateScope scope, StateValue value) = 0;
};

}  // namespace lockstep
