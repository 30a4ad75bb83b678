// SPDX-License-Identifier: Apache-2.0
//
// PlannedLayer: one layer of a Network, bound to kernels and then, once, to memory. It says what it needs
// before any memory exists (layouts, saved and scratch bytes, which tensors backward reads, what may share
// memory), so that Network can lay out the arena.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "kernels/backend.h"
#include "models/graph.h"
#include "models/pass.h"

namespace lockstep {

// Whether an output may lie where an input does (and, for gradients, an input's gradient where an output's
// does).
enum class Sharing {
  none,
  in_place,  // may be written over it
  same,      // is the same values: nothing is written at all
};

struct ParameterSpec {
  std::string suffix;       // "weight"
  Layout layout;            // of the gradient, and of the value as the layer reads it
  float uniform_bound = 0;  // starts as U(-bound, bound), ...
  float deviation = 0;      // ... or N(0, deviation^2), ...
  float constant = 0;       // ... or this, where both are 0
};

// What the layer works on, set once after planning. Null where there is none or it is not wanted.
struct LayerMemory {
  std::array<const void*, 2> inputs = {};
  std::array<void*, 2> outputs = {};
  std::array<void*, 2> input_gradients = {};
  std::array<const void*, 2> output_gradients = {};
  // A layer with adds_input_gradient() adds its gradient to this one, which may lie at input_gradients[0]. A
  // fork has it set if output_gradients[0] already contains output_gradients[1].
  const void* addend = nullptr;
  void* saved = nullptr;
  void* scratch = nullptr;
  std::vector<const Parameter*> parameters;   // in the order of parameter_specs
  std::vector<float*> statistics;             // in the order of statistic_specs: what training moves, ...
  std::vector<float*> evaluation_statistics;  // ... and what evaluation reads; the same where frozen
  const SampleId* samples = nullptr;          // [batch], of the last forward
  std::uint64_t seed = 0;                     // of the network
};

class PlannedLayer {
 public:
  virtual ~PlannedLayer() = default;

  const Layout& output() const { return output_; }
  // The kernel that was chosen for a direction, for people: "winograd"; empty where there was no choice.
  virtual std::string choice(Direction) const { return ""; }
  const std::vector<ParameterSpec>& parameter_specs() const { return parameter_specs_; }
  // Running statistics: state that is not trained by gradients.
  const std::vector<ParameterSpec>& statistic_specs() const { return statistic_specs_; }
  virtual std::size_t saved_bytes() const { return 0; }
  virtual std::size_t scratch_bytes() const { return 0; }
  virtual bool backward_reads_input(int input) const { return static_cast<void>(input), false; }
  virtual bool backward_reads_output() const { return false; }
  // Of outputs[*] with inputs[shared_input()].
  virtual Sharing output_sharing() const { return Sharing::none; }
  virtual int shared_input() const { return 0; }
  // Of input_gradients[input] with output_gradients[0].
  virtual Sharing gradient_sharing(int input) const { return static_cast<void>(input), Sharing::none; }
  // True if backward_inputs adds to LayerMemory::addend.
  virtual bool adds_input_gradient() const { return false; }

  virtual void forward(const Pass& pass, const LayerMemory& memory) = 0;
  // Backward in two parts, so that the parameters' gradients can travel while the inputs' are computed. A
  // layer whose kernel makes both at once does all of it in the first part, and always writes its input's
  // gradient.
  virtual bool backward_is_one_kernel() const { return false; }
  // Writes the parameters' gradients as pass.gradients says; not called where there are none to write, unless
  // backward is one kernel.
  virtual void backward_parameters(const Pass&, const LayerMemory&) {}
  // Writes the input gradients that are not null.
  virtual void backward_inputs(const Pass&, const LayerMemory&) {}

 protected:
  Layout output_;
  std::vector<ParameterSpec> parameter_specs_;
  std::vector<ParameterSpec> statistic_specs_;
};

// What a layer is planned for.
struct LayerContext {
  Backend& backend;
  KernelChoices& choices;
  bool tf32 = false;
  int batch_norm_ranks = 1;
  bool input_gradient = true;  // false: nobody wants the gradient of its input
  // Wanted, not required: add to the gradient that another layer has written for the same input.
  bool adds_input_gradient = false;
  bool frozen = false;  // its parameters are not trained
  // Convolution and linear: the activation that follows, to be applied with them. The activation's own layer
  // is then planned with `applied`: it only has a backward.
  Activation activation = Activation::none;
  bool applied = false;
};

// inputs are the layouts of the layer's inputs, as their producers chose them.
std::unique_ptr<PlannedLayer> plan_layer(const LayerContext& context, const Operation& operation,
                                         std::span<const Layout> inputs);

// One value used twice: forward is nothing. Backward adds the two gradients, unless the layer that wrote the
// first one has done so (LayerMemory::addend). Network inserts it.
std::unique_ptr<PlannedLayer> plan_fork(Backend& backend, const Layout& input);

}  // namespace lockstep
