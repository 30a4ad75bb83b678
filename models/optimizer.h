// SPDX-License-Identifier: Apache-2.0
//
// Optimizers over flat memory: values, gradients and state share offsets, so a step is one call of the
// backend over everything (in half precision one for each type of gradient), not one for each tensor. Which
// elements decay is a table made once, from the parameters' shapes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/buffer.h"
#include "core/number_option.h"
#include "core/parameter.h"
#include "core/state.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "kernels/backend.h"
#include "models/network.h"

namespace lockstep {

// What an optimizer updates; must outlive it. values is a whole arena with padding, in which the parameters
// lie at their offsets, which ascend; gradients cover the same elements, range by range.
struct TrainedMemory {
  Device device;
  std::span<const Parameter> parameters;
  std::span<float> values;
  FlatRange copies;  // what the half ranges' layers compute with; empty in fp32
  std::span<const FlatRange> gradients;
};
TrainedMemory trained_memory(Network& network, std::span<const FlatRange> gradients);

// fp16's loss scale; with the defaults there is none.
struct LossScaleOptions {
  double initial = 1;
  LossScaleRule rule = {};
  bool dynamic() const { return rule.interval > 0; }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // What a step depends on besides the gradients, in device memory.
  StepControl* control() const { return reinterpret_cast<StepControl*>(control_.data()); }
  const float* loss_scale() const { return &control()->loss_scale; }
  const LossScaleOptions& loss_scale_options() const { return loss_scale_; }
  // Judges the (summed) gradients: control()->finite. Without a dynamic loss scale what was not finite once
  // stays so until restore_control() says otherwise: nobody is there to lower the scale.
  void check_gradients(Stream& stream);
  // Squares of the (summed) gradients, loss scale and all, in kSquareSums parts; memory of the device.
  void sum_gradient_squares(Stream& stream, double* sums);
  // The next step takes gradients scaled to this norm where theirs is larger: see GradientClip. Behind
  // sum_gradient_squares() of the same sums.
  void clip_gradients(Stream& stream, const double* sums, double most_norm);
  // From now on each step is judged by its own gradients.
  void judge_each_step() { each_step_ = true; }
  // One step with the (summed, already averaged) gradients, unless they were judged not finite; counts it and
  // moves the loss scale. All ordered on the stream.
  // The slot says which learning rate.
  void step(Stream& stream, StepSlot slot);
  // Where step() would lead with other gradients, in the ranges that the (summed) ones have: values alone
  // change, and their copies; whoever asks keeps what they were. control, memory of the device, stands in for
  // the optimizer's: says whether there is anything to do (finite), and by which loss scale it is divided;
  // the rest is filled in.
  void look_ahead(Stream& stream, StepSlot slot, std::span<const FlatRange> gradients, StepControl* control);
  // The same range by range of TrainedMemory::gradients, as their sums arrive: first begin_step(), then each
  // range once, in any order, judged and then updated unless it or one before it is not finite, then
  // finish_step(). Without a dynamic loss scale. Values have the bits of step(); where a range was not finite
  // those before it have been updated already.
  void begin_step(Stream& stream, StepSlot slot);
  void step_range(Stream& stream, std::size_t range);
  void finish_step(Stream& stream);
  // Of the steps with this slot, until it is set again: pinned memory, from which no earlier step may still
  // be about to read.
  void set_learning_rate(StepSlot slot, double learning_rate);
  // For who waits for each step.
  void step(Stream& stream, double learning_rate) {
    set_learning_rate({}, learning_rate);
    step(stream, StepSlot{});
  }

  // Of what visit_state() shows: replicated, unless each rank steps with its own gradients.
  void set_state_scope(StateScope scope) { state_scope_ = scope; }
  // Each of state_names() of each parameter, as in "fc.weight.momentum_buffer", and of control() what lasts:
  // steps, loss scale, good steps. No work on them may be under way.
  void visit_state(StateVisitor& visitor);
  static constexpr const char* kSteps = "optimizer.steps";  // the name of those that were not skipped

  // One arena laid out like the parameters', padding included, for each of state_names(), one after another.
  std::span<float> state() const;
  // As PyTorch calls them: "momentum_buffer"; "exp_avg", "exp_avg_sq".
  const std::vector<std::string>& state_names() const { return state_names_; }
  // Wait for the stream.
  StepControl read_control(Stream& stream) const;
  void restore_control(Stream& stream, const StepControl& control);

 protected:
  Optimizer(const TrainedMemory& memory, std::span<const UpdateSegment> segments,
            std::vector<std::string> state_names, const LossScaleOptions& loss_scale);
  // Of one range; piece counts them.
  virtual void update(Stream& stream, const Update& update, std::size_t piece) = 0;

  Backend& backend() { return backend_; }
  std::size_t pieces() const { return tables_.size(); }
  const UpdateTable& table(std::size_t piece) const { return tables_[piece]; }
  float* state(std::size_t index) const { return state().data() + index * memory_.values.size(); }

 private:
  void check_range(Stream& stream, std::size_t piece, Write write);
  void update_range(Stream& stream, std::size_t piece, const FlatRange& gradients, const StepControl* control,
                    bool state_stays);
  void copy_learning_rate(Stream& stream, StepSlot slot, StepControl* to);
  float within_limits(double loss_scale) const;

  Backend& backend_;
  TrainedMemory memory_;
  LossScaleOptions loss_scale_;
  std::vector<UpdateTable> tables_;  // of each range of gradients
  std::vector<std::string> state_names_;
  StateScope state_scope_ = StateScope::replicated;
  bool each_step_ = false;  // see judge_each_step()
  Buffer state_;
  Buffer control_;
  Buffer learning_rates_;  // pinned, by slot
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

// What C++ may call by its options instead of its name.
using OptimizerOptions = std::variant<SgdOptions, AdamWOptions, LarsOptions>;

// Every optimizer's options under one name each, as a person gives them: what several optimizers have they
// share. Each takes what it has a use for. What one alone is told may be one of its own numbers.
struct OptimizerSettings {
  std::string name = "sgd";  // of a row of the table
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  bool decay_norm_and_bias = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double trust_coefficient = 1e-3;
  OwnNumbers own;  // of optimizers
};
SgdOptions sgd_options(const OptimizerSettings& settings);
AdamWOptions adamw_options(const OptimizerSettings& settings);
LarsOptions lars_options(const OptimizerSettings& settings);

// A learning rate that trains a network of many layers without care.
struct GentleRate {
  enum class Growth { linear, root };
  double for_256_samples = 0.1;  // and for more
  Growth growth = Growth::root;  // up to there: in proportion to the samples, or to their square root

  double of(double samples) const;
};

// A row of the table of optimizers: what optimizer.name may be, and all that is known by it.
struct OptimizerKind {
  std::string name;
  std::vector<std::string> state_names;  // see Optimizer::state_names
  std::function<std::unique_ptr<Optimizer>(const TrainedMemory& memory, const OptimizerSettings& settings,
                                           const LossScaleOptions& loss_scale)>
      make;
  GentleRate gentle_rate = {};
  std::span<const NumberOption> options = {};  // keys optimizer.NAME.OPTION

  // Of state(), for parameters of so many bytes.
  std::size_t state_bytes(std::size_t parameter_bytes) const { return state_names.size() * parameter_bytes; }
};
// Those that are shipped.
const std::vector<OptimizerKind>& optimizer_kinds();
// Throws ConfigError for a name that the table has not, with all that it has.
const OptimizerKind& optimizer_kind(const std::string& name,
                                    const std::vector<OptimizerKind>& table = optimizer_kinds());

std::unique_ptr<Optimizer> make_optimizer(const TrainedMemory& memory, const OptimizerOptions& options,
                                          const LossScaleOptions& loss_scale = {});

}  // namespace lockstep
