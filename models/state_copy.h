// SPDX-License-Identifier: Apache-2.0
//
// A copy of state in plain host memory: StateReader makes it, StateWriter restores it, independent of the
// owners' layouts and devices.
#pragma once

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/device.h"
#include "core/state.h"
#include "core/stream.h"

namespace lockstep {

// In visiting order.
struct StateCopy {
  struct Tensor {
    std::string name;
    StateScope scope = StateScope::replicated;
    Shape shape;
    std::vector<float> values;  // shape.elements()
    bool operator==(const Tensor&) const = default;
  };
  struct Value {
    std::string name;
    StateScope scope = StateScope::replicated;
    std::variant<std::int64_t, double> value;
    bool operator==(const Value&) const = default;
  };
  std::vector<Tensor> tensors;
  std::vector<Value> values;
  bool operator==(const StateCopy&) const = default;
};

class StateReader final : public StateVisitor {
 public:
  explicit StateReader(Device device) : stream_(device, StreamUse::compute) {}

  // All state visited so far.
  StateCopy& copy() { return copy_; }

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override;
  void value(const std::string& name, StateScope scope, StateValue value) override;

 private:
  Stream stream_;
  StateCopy copy_;
};

// Throws DataError for a piece that the copy lacks or has in another shape or type; the message names it. A
// per-rank tensor that is missing is read from the replicated one of that name. The copy must outlive this.
class StateWriter final : public StateVisitor {
 public:
  StateWriter(Device device, const StateCopy& copy) : stream_(device, StreamUse::compute), copy_(copy) {}

  bool writes() const override { return true; }
  bool has_value(const std::string& name, StateScope scope) const override;
  void tensor(const StateTensor& tensor, StateScope scope) override;
  void value(const std::string& name, StateScope scope, StateValue value) override;

  // Names of the copy's tensors of this scope that nothing has visited.
  std::vector<std::string> unused(StateScope scope) const;

 private:
  Stream stream_;
  const StateCopy& copy_;
  std::set<const StateCopy::Tensor*> used_;
};

}  // namespace lockstep
