// SPDX-License-Identifier: Apache-2.0
//
// Optimizers over flat memory: values, gradients and state share offsets, so a step is one backend call for
// all tensors (in half precision one per gradient type). A table of the decaying elements is made once, from
// the parameters' shapes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/number_option.h"
#include "core/state.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "core/tensor/parameter.h"
#include "kernels/backend.h"
#include "models/network.h"

namespace lockstep {

// The memory that an optimizer updates; must outlive it. values is the whole arena including padding, with
// the parameters at their ascending offsets. gradients covers the same elements, range by range, unless other
// ranks update the rest: `complete` is then set.
struct TrainedMemory {
  Device device;
  std::span<const Parameter> parameters;
  std::span<float> values;
  FlatRange copies;  // copies that layers of the half ranges compute with; empty in fp32
  std::span<const FlatRange> gradients;
  // Collective. Fills in the elements of other ranks in a flat array in host memory, of which this rank's are
  // set, and waits for them. Null: no other rank updates elements. The state then covers all of them.
  std::function<void(float* flat)> complete = nullptr;
};
TrainedMemory trained_memory(Network& network, std::span<const FlatRange> gradients,
                             std::function<void(float* flat)> complete = nullptr);

// Loss scale for fp16; the defaults disable it.
struct LossScaleOptions {
  double initial = 1;
  LossScaleRule rule = {};
  bool dynamic() const { return rule.interval > 0; }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // The inputs of a step other than the gradients, in device memory.
  StepControl* control() const { return reinterpret_cast<StepControl*>(control_.data()); }
  const float* loss_scale() const { return &control()->loss_scale; }
  const LossScaleOptions& loss_scale_options() const { return loss_scale_; }
  // Checks the (summed) gradients and sets control()->finite. With neither a dynamic loss scale nor
  // judge_each_step(), finite stays 0 after the first failure until restore_control(), because no scale can
  // be lowered.
  void check_gradients(Stream& stream);
  // Sums the squares of the (summed) gradients, including the loss scale, into kSquareSums parts in device
  // memory.
  void sum_gradient_squares(Stream& stream, double* sums);
  // Clips the gradients of the next step to this norm: see GradientClip. Call after sum_gradient_squares()
  // with the same sums.
  void clip_gradients(Stream& stream, const double* sums, double most_norm);
  // From now on, check_gradients() sets finite for each step separately.
  void judge_each_step() { each_step_ = true; }
  bool judges_each_step() const { return each_step_; }
  // One step with the (summed, already averaged) gradients, unless they are not finite. Counts the step and
  // updates the loss scale, all in stream order. slot selects the learning rate. updated(range): called after
  // the update of each range of TrainedMemory::gradients is enqueued.
  void step(Stream& stream, StepSlot slot, const std::function<void(std::size_t range)>& updated = nullptr);
  // Changes values and copies as step() would with other gradients, in ranges like those of the (summed)
  // ones; momentum and moments do not change. The caller saves and restores the values. control, in device
  // memory, replaces the optimizer's: the caller sets finite and loss_scale, the rest is filled in.
  void look_ahead(Stream& stream, StepSlot slot, std::span<const FlatRange> gradients, StepControl* control);
  // A step split by TrainedMemory::gradients, as the sums of its ranges arrive: begin_step(), then each range
  // once in any order, then finish_step(). Each range is checked and then updated, unless it or an earlier
  // one is not finite. Requires a loss scale that is not dynamic. Values get the same bits as with step(),
  // but ranges updated before a range that is not finite stay updated.
  void begin_step(Stream& stream, StepSlot slot);
  void step_range(Stream& stream, std::size_t range);
  void finish_step(Stream& stream);
  // Sets the learning rate of steps with this slot until it is set again. Writes pinned memory: no earlier
  // step may still have to read it.
  void set_learning_rate(StepSlot slot, double learning_rate);
  // For callers that wait for each step.
  void step(Stream& stream, double learning_rate) {
    set_learning_rate({}, learning_rate);
    step(stream, StepSlot{});
  }

  // True if other ranks update a part of the elements (TrainedMemory::complete).
  bool shares_elements() const { return memory_.complete != nullptr; }
  // The scope of visit_state(): replicated, unless each rank steps with its own gradients.
  void set_state_scope(StateScope scope) { state_scope_ = scope; }
  // Visits each of state_names() for each parameter, as in "fc.weight.momentum_buffer", and the lasting parts
  // of control(): steps, loss scale, good steps. No work on them may be pending. Collective if
  // TrainedMemory::complete is set and the visitor does not write: the state of all elements is completed, in
  // host memory that lasts for the call.
  void visit_state(StateVisitor& visitor);
  static constexpr const char* kSteps = "optimizer.steps";  // name of the count of steps without skipped ones

  // For each of state_names() the elements of TrainedMemory::gradients, including padding, range after range;
  // the arenas are contiguous.
  std::span<float> state() const;
  // PyTorch's names: "momentum_buffer"; "exp_avg", "exp_avg_sq".
  const std::vector<std::string>& state_names() const { return state_names_; }
  // Both wait for the stream.
  StepControl read_control(Stream& stream) const;
  void restore_control(Stream& stream, const StepControl& control);

 protected:
  Optimizer(const TrainedMemory& memory, std::span<const UpdateSegment> segments,
            std::vector<std::string> state_names, const LossScaleOptions& loss_scale);
  // Updates one range of gradients; piece is its index.
  virtual void update(Stream& stream, const Update& update, std::size_t piece) = 0;

  Backend& backend() { return backend_; }
  std::size_t pieces() const { return tables_.size(); }
  const UpdateTable& table(std::size_t piece) const { return tables_[piece]; }
  // The state of one range of gradients, indexed by the flat order; other elements must not be used.
  float* state(std::size_t index, std::size_t piece) const {
    return state_of(index) + state_offsets_[piece] - memory_.gradients[piece].begin;
  }

 private:
  float* state_of(std::size_t index) const { return state().data() + index * state_elements_; }
  void visit_tensors(StateVisitor& visitor, Stream& stream);
  void check_range(Stream& stream, std::size_t piece, Write write);
  void update_range(Stream& stream, std::size_t piece, const FlatRange& gradients, const StepControl* control,
                    bool state_stays);
  void copy_learning_rate(Stream& stream, StepSlot slot, StepControl* to);
  float within_limits(double loss_scale) const;

  Backend& backend_;
  TrainedMemory memory_;
  LossScaleOptions loss_scale_;
  std::vector<UpdateTable> tables_;  // one per range of gradients
  std::vector<std::string> state_names_;
  StateScope state_scope_ = StateScope::replicated;
  bool each_step_ = false;                   // see judge_each_step()
  std::vector<std::int64_t> state_offsets_;  // by range of gradients
  std::size_t state_elements_ = 0;           // of each state name
  Buffer state_;
  Buffer control_;
  Buffer learning_rates_;  // pinned, by slot
};

// decay_norm_and_bias = false exempts biases and the parameters of norms from weight decay.

// See SgdUpdate.
struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum > 0
  bool decay_norm_and_bias = true;
};

// See AdamWUpdate.
struct AdamWOptions {
  double beta1 = 0.9;  // both from 0, below 1
  double beta2 = 0.999;
  double epsilon = 1e-8;  // > 0 as a float
  double weight_decay = 0.01;
  bool decay_norm_and_bias = true;
};

// See LarsUpdate. Biases and the parameters of norms neither decay nor have a trust ratio.
struct LarsOptions {
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  double epsilon = 1e-8;
};

// The optimizers that C++ code can select by their options instead of by name.
using OptimizerOptions = std::variant<SgdOptions, AdamWOptions, LarsOptions>;

// The options of all optimizers as users set them; optimizers with the same option share it. Each optimizer
// reads those it uses. An option of a single optimizer may be one of its `own` numbers.
struct OptimizerSettings {
  std::string name = "sgd";  // name of a row of the table
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  bool decay_norm_and_bias = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double trust_coefficient = 1e-3;
  OwnNumbers own;  // own numbers of optimizers
};
SgdOptions sgd_options(const OptimizerSettings& settings);
AdamWOptions adamw_options(const OptimizerSettings& settings);
LarsOptions lars_options(const OptimizerSettings& settings);

// A learning rate with which a deep network trains reliably without tuning.
struct GentleRate {
  enum class Growth { linear, root };
  double for_256_samples = 0.1;  // and for more samples
  Growth growth = Growth::root;  // below 256: proportional to the samples or to their square root

  double of(double samples) const;
};

// A row of the table of optimizers, selected by optimizer.name.
struct OptimizerKind {
  std::string name;
  std::vector<std::string> state_names;  // see Optimizer::state_names
  std::function<std::unique_ptr<Optimizer>(const TrainedMemory& memory, const OptimizerSettings& settings,
                                           const LossScaleOptions& loss_scale)>
      make;
  GentleRate gentle_rate = {};
  std::span<const NumberOption> options = {};  // keys optimizer.NAME.OPTION
  // An element's update depends on no other element, so that ranks can share the update.
  bool by_element = false;

  // Bytes of state() for this size of the parameters.
  std::size_t state_bytes(std::size_t parameter_bytes) const { return state_names.size() * parameter_bytes; }
};
// The optimizers that ship with Lockstep.
const std::vector<OptimizerKind>& optimizer_kinds();
// Throws ConfigError for a name that is not in the table; the message lists all names.
const OptimizerKind& optimizer_kind(const std::string& name,
                                    const std::vector<OptimizerKind>& table = optimizer_kinds());

std::unique_ptr<Optimizer> make_optimizer(const TrainedMemory& memory, const OptimizerOptions& options,
                                          const LossScaleOptions& loss_scale = {});

}  // namespace lockstep
