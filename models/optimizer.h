// SPDX-License-Identifier: Apache-2.0
//
// Optimizers over flat memory: values, gradients and state share offsets, so a step is one call of the
// backend over everything, not one for each tensor. Which elements decay is a table made once, from the
// parameters' shapes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/buffer.h"
#include "core/stream.h"
#include "kernels/backend.h"
#include "kernels/parameter.h"

namespace lockstep {

// What an optimizer updates; must outlive it. values and gradients are whole arenas of the same size, with
// padding, in which the parameters lie at their offsets, which ascend.
struct TrainedMemory {
  Device device;
  std::span<const Parameter> parameters;
  std::span<float> values;
  std::span<const float> gradients;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One step with the (summed, already averaged) gradients. Ordered on the stream.
  void step(Stream& stream, float learning_rate);

  // What a checkpoint must hold besides the parameters: state() and steps().
  // One arena laid out like the parameters', padding included, for each of state_names(), one after another.
  std::span<float> state() const;
  // As PyTorch calls them: "momentum_buffer"; "exp_avg", "exp_avg_sq".
  const std::vector<std::string>& state_names() const { return state_names_; }
  // Steps done: AdamW's bias correction depends on it.
  std::int64_t steps() const { return steps_; }
  void restore_steps(std::int64_t steps) { steps_ = steps; }

 protected:
  Optimizer(const TrainedMemory& memory, std::span<const UpdateSegment> segments,
            std::vector<std::string> state_names);
  virtual void update(Stream& stream, float learning_rate) = 0;

  Backend& backend() { return backend_; }
  const UpdateTable& table() const { return table_; }
  float* values() const { return memory_.values.data(); }
  const float* gradients() const { return memory_.gradients.data(); }
  float* state(std::size_t index) const { return state().data() + index * memory_.values.size(); }

 private:
  Backend& backend_;
  TrainedMemory memory_;
  UpdateTable table_;
  std::vector<std::string> state_names_;
  Buffer state_;
  std::int64_t steps_ = 0;
};

// decay_norm_and_bias = false exempts one-dimensional parameters, which are those of batch norm and biases,
// from weight decay.

// See SgdUpdate.
struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum > 0
  bool decay_norm_and_bias = true;
};

// See AdamWUpdate.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;  // > 0 as a float
  double weight_decay = 0.01;
  bool decay_norm_and_bias = true;
};

// See LarsUpdate. One-dimensional parameters neither decay nor have a trust ratio.
struct LarsOptions {
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  double epsilon = 1e-8;
};

using OptimizerOptions = std::variant<SgdOptions, AdamWOptions, LarsOptions>;

std::unique_ptr<Optimizer> make_optimizer(const TrainedMemory& memory, const OptimizerOptions& options);

}  // namespace lockstep
