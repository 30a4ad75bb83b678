// SPDX-License-Identifier: Apache-2.0
//
// PlannedLayer: one layer of a Network, bound to kernels and then, once, to memory. It reports its needs
// before memory exists (layouts, saved and scratch bytes, the tensors that backward reads, possible memory
// sharing), so that Network can plan the arena.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/parameter.h"
#include "kernels/backend.h"
#include "models/graph.h"
#include "models/pass.h"

namespace lockstep {

// Which memory of an input an output may use. For gradients: an input's gradient may use the memory of an
// output's gradient.
enum class Sharing {
  none,
  in_place,  // may overwrite it
  same,      // has the same values: nothing is written
};

struct ParameterSpec {
  std::string suffix;       // "weight"
  Layout layout;            // of the gradient, and of the weights as the layer reads them
  float uniform_bound = 0;  // initial values: U(-bound, bound), ...
  float deviation = 0;      // ... or N(0, deviation^2), ...
  float constant = 0;       // ... or this, if both are 0
  float l2 = 0;             // see Parameter
  bool of_norm = false;     // likewise
};

// The memory of a layer, set once after planning. A pointer is null if the tensor does not exist or is not
// needed.
struct LayerMemory {
  std::array<const void*, 2> inputs = {};
  std::array<void*, 2> outputs = {};
  std::array<void*, 2> input_gradients = {};
  std::array<const void*, 2> output_gradients = {};
  // A layer with adds_input_gradient() adds its gradient to this one, which may be input_gradients[0]. For a
  // fork it is set if output_gradients[0] already contains output_gradients[1].
  const void* addend = nullptr;
  void* saved = nullptr;
  void* scratch = nullptr;
  std::vector<const Parameter*> parameters;   // in the order of parameter_specs
  std::vector<float*> statistics;             // training statistics, in the order of statistic_specs, ...
  std::vector<float*> evaluation_statistics;  // ... and those that evaluation reads; the same if frozen
  const SampleId* samples = nullptr;          // [batch], of the last forward
  std::uint64_t seed = 0;                     // of the network
};

class PlannedLayer {
 public:
  virtual ~PlannedLayer() = default;

  const Layout& output() const { return output_; }
  // The name of the kernel chosen for a direction, for users: "winograd"; empty if there was no choice.
  virtual std::string choice(Direction) const { return ""; }
  const std::vector<ParameterSpec>& parameter_specs() const { return parameter_specs_; }
  // Running statistics: state that gradients do not train.
  const std::vector<ParameterSpec>& statistic_specs() const { return statistic_specs_; }
  virtual std::size_t saved_bytes() const { return 0; }
  virtual std::size_t scratch_bytes() const { return 0; }
  virtual bool backward_reads_input(int input) const { return static_cast<void>(input), false; }
  virtual bool backward_reads_output() const { return false; }
  // Sharing of outputs[*] with inputs[shared_input()].
  virtual Sharing output_sharing() const { return Sharing::none; }
  virtual int shared_input() const { return 0; }
  // Sharing of input_gradients[input] with output_gradients[0].
  virtual Sharing gradient_sharing(int input) const { return static_cast<void>(input), Sharing::none; }
  // True if backward_inputs adds to LayerMemory::addend.
  virtual bool adds_input_gradient() const { return false; }

  virtual void forward(const Pass& pass, const LayerMemory& memory) = 0;
  // Backward has two parts, so that the parameters' gradients can be exchanged while the inputs' are
  // computed. A layer whose kernel computes both at once does so in the first part, and always writes its
  // input's gradient.
  virtual bool backward_is_one_kernel() const { return false; }
  // Writes the parameters' gradients in the mode of pass.gradients.
  virtual void backward_parameters(const Pass&, const LayerMemory&) {}
  // Writes the input gradients whose pointers are not null.
  virtual void backward_inputs(const Pass&, const LayerMemory&) {}

 protected:
  Layout output_;
  std::vector<ParameterSpec> parameter_specs_;
  std::vector<ParameterSpec> statistic_specs_;
};

// The arguments for planning a layer.
struct LayerContext {
  Backend& backend;
  KernelChoices& choices;
  bool tf32 = false;
  int batch_norm_ranks = 1;
  bool input_gradient = true;  // false: its input's gradient is not needed
  // Request that the layer may ignore: add to the gradient that another layer has written for the same input.
  bool adds_input_gradient = false;
  bool frozen = false;  // its parameters are not trained
  // Convolution and linear: the following activation, fused into the forward kernel. The activation's own
  // layer is then planned with `applied` and only has a backward.
  Activation activation = Activation::none;
  bool applied = false;
};

// inputs: the layouts of the layer's inputs, chosen by their producers.
std::unique_ptr<PlannedLayer> plan_layer(const LayerContext& context, const Operation& operation,
                                         std::span<const Layout> inputs);

// A value with two uses: forward does nothing. Backward adds the two gradients, unless the layer that wrote
// the first one has done so (LayerMemory::addend). NetworkPlan inserts it.
std::unique_ptr<PlannedLayer> plan_fork(Backend& backend, const Layout& input);

}  // namespace lockstep
