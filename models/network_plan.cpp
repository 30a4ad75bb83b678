// SPDX-License-Identifier: Apache-2.0
#include "models/network_plan.h"

#include <algorithm>

#include "core/buffer.h"
#include "core/error.h"

namespace lockstep {
namespace {

// Turns the graph into nodes, giving every value exactly one consumer.
class NodePlanner {
 public:
  NodePlanner(const Graph& graph, Backend& backend, KernelChoices& choices, NetworkPlan& plan)
      : graph_(graph),
        backend_(backend),
        choices_(choices),
        plan_(plan),
        uses_left_(graph.layers().size() + 1, 0),
        activation_(graph.layers().size() + 1, Activation::none),
        applied_(graph.layers().size() + 1, false) {
    for (const Layer& layer : graph.layers()) {
      for (const Value input : layer.inputs) ++uses_left_[static_cast<std::size_t>(input.id)];
    }
    ++uses_left_[static_cast<std::size_t>(graph.logits().id)];
    fuse_activations();
  }

  void run() {
    current_ = {0};
    plan_.values.push_back({.layout = plan_.image_input->output()});
    for (const Layer& layer : graph_.layers()) {
      std::vector<int> inputs;
      std::vector<Layout> layouts;
      for (const Value input : layer.inputs) {
        inputs.push_back(use(input.id));
        layouts.push_back(plan_.values[static_cast<std::size_t>(inputs.back())].layout);
      }
      const bool input_gradient = std::ranges::any_of(
          inputs, [&](int input) { return plan_.values[static_cast<std::size_t>(input)].wants_gradient; });
      const auto output = static_cast<std::size_t>(layer.output.id);
      const LayerContext context{.backend = backend_,
                                 .choices = choices_,
                                 .input_gradient = input_gradient,
                                 .activation = activation_[output],
                                 .applied = applied_[output]};
      plan_.needs_samples |= std::holds_alternative<DropoutOptions>(layer.operation);
      append(plan_layer(context, layer.operation, layouts), layer.name, inputs, 1);
      plan_.nodes.back().layer_index = static_cast<int>(&layer - graph_.layers().data());
      current_.push_back(plan_.nodes.back().outputs[0]);
    }
    plan_.logits = use(graph_.logits().id);
  }

 private:
  // An activation that is the only use of a convolution or linear layer is applied by it.
  void fuse_activations() {
    for (const Layer& layer : graph_.layers()) {
      const auto* activation = std::get_if<ActivationOptions>(&layer.operation);
      if (activation == nullptr || layer.inputs[0].id == 0) continue;
      const auto input = static_cast<std::size_t>(layer.inputs[0].id);
      const Operation& producer = graph_.layers()[input - 1].operation;
      const bool affine = std::holds_alternative<ConvolutionOptions>(producer) ||
                          std::holds_alternative<LinearOptions>(producer);
      if (!affine || uses_left_[input] != 1) continue;
      activation_[input] = activation->activation;
      applied_[static_cast<std::size_t>(layer.output.id)] = true;
    }
  }

  // The planned value that a use of a graph's value reads; a fork makes two of one when more uses follow.
  int use(int graph_value) {
    const auto index = static_cast<std::size_t>(graph_value);
    if (uses_left_[index]-- == 1) return current_[index];
    const int source = current_[index];
    append(plan_fork(backend_, plan_.values[static_cast<std::size_t>(source)].layout), "", {source}, 2);
    current_[index] = plan_.nodes.back().outputs[1];
    return plan_.nodes.back().outputs[0];
  }

  void append(std::unique_ptr<PlannedLayer> layer, const std::string& name, std::vector<int> inputs,
              int outputs) {
    const int node = static_cast<int>(plan_.nodes.size());
    bool wants_gradient = !layer->parameter_specs().empty();
    for (const int input : inputs) {
      PlannedValue& value = plan_.values[static_cast<std::size_t>(input)];
      value.consumer = node;
      value.wants_gradient = value.wants_gradient || layer->backward_is_one_kernel();
      wants_gradient = wants_gradient || value.wants_gradient;
    }
    PlannedNode made{.layer = std::move(layer), .name = name, .inputs = std::move(inputs), .outputs = {}};
    for (int i = 0; i < outputs; ++i) {
      made.outputs.push_back(static_cast<int>(plan_.values.size()));
      plan_.values.push_back(
          {.layout = made.layer->output(), .producer = node, .wants_gradient = wants_gradient});
    }
    plan_.nodes.push_back(std::move(made));
  }

  const Graph& graph_;
  Backend& backend_;
  KernelChoices& choices_;
  NetworkPlan& plan_;
  // By graph value:
  std::vector<int> uses_left_;
  std::vector<int> current_;
  std::vector<Activation> activation_;  // to be applied by the layer that makes the value
  std::vector<bool> applied_;           // the value is made by an activation that is applied already
};

// Gives every tensor a block of the arena. Time runs from the input (0) over the layers (1..n) and the loss
// (n + 1) back to the first layer (2n + 1).
class MemoryPlanner {
 public:
  explicit MemoryPlanner(NetworkPlan& plan) : plan_(plan), count_(static_cast<int>(plan.nodes.size())) {}

  void run() {
    place_data();
    place_gradients();
    std::size_t scratch = 0;
    for (int node = 0; node < count_; ++node) {
      PlannedNode& planned = plan_.nodes[static_cast<std::size_t>(node)];
      if (const std::size_t saved = planned.layer->saved_bytes(); saved > 0) {
        planned.saved_block = add(saved, forward_time(node), backward_time(node));
      }
      scratch = std::max(scratch, planned.layer->scratch_bytes());
    }
    if (scratch > 0) plan_.scratch_block = add(scratch, 0, backward_time(0));
    plan_.arena = plan_arena(plan_.blocks);
  }

 private:
  static int forward_time(int node) { return node + 1; }
  int loss_time() const { return count_ + 1; }
  int backward_time(int node) const { return 2 * count_ + 1 - node; }

  int add(std::size_t bytes, int first, int last) {
    plan_.blocks.push_back({.bytes = bytes, .first = first, .last = last});
    plan_.unshared_bytes += align_up(bytes);
    return static_cast<int>(plan_.blocks.size()) - 1;
  }
  // A tensor that lies in an existing block keeps it alive, too.
  int join(int block, std::size_t bytes, int last) {
    ArenaBlock& joined = plan_.blocks[static_cast<std::size_t>(block)];
    joined.last = std::max(joined.last, last);
    plan_.unshared_bytes += align_up(bytes);
    return block;
  }
  // Whether nobody reads the block after this time, so that what is computed then may overwrite it.
  bool may_overwrite(int block, std::size_t bytes, int time) const {
    const ArenaBlock& existing = plan_.blocks[static_cast<std::size_t>(block)];
    return existing.last <= time && existing.bytes == bytes;
  }

  bool backward_reads(const PlannedValue& value) const {
    const PlannedNode& consumer = plan_.nodes[static_cast<std::size_t>(value.consumer)];
    for (std::size_t i = 0; i < consumer.inputs.size(); ++i) {
      const bool is_value = &plan_.values[static_cast<std::size_t>(consumer.inputs[i])] == &value;
      if (is_value && consumer.layer->backward_reads_input(static_cast<int>(i))) return true;
    }
    return false;
  }

  int data_last(const PlannedValue& value) const {
    int last = value.consumer < 0 ? loss_time() : forward_time(value.consumer);
    if (value.consumer >= 0 && backward_reads(value)) last = backward_time(value.consumer);
    if (value.producer >= 0 &&
        plan_.nodes[static_cast<std::size_t>(value.producer)].layer->backward_reads_output()) {
      last = std::max(last, backward_time(value.producer));
    }
    return last;
  }

  void place_data() {
    PlannedValue& images = plan_.values[0];
    images.data_block = add(images.layout.bytes(), 0, data_last(images));
    for (int node = 0; node < count_; ++node) {
      const PlannedNode& planned = plan_.nodes[static_cast<std::size_t>(node)];
      const Sharing sharing = planned.layer->output_sharing();
      for (const int output : planned.outputs) {
        PlannedValue& value = plan_.values[static_cast<std::size_t>(output)];
        const auto shared = static_cast<std::size_t>(planned.layer->shared_input());
        const int source = plan_.values[static_cast<std::size_t>(planned.inputs[shared])].data_block;
        const std::size_t bytes = value.layout.bytes();
        const bool shares = sharing == Sharing::same || (sharing == Sharing::in_place &&
                                                         may_overwrite(source, bytes, forward_time(node)));
        value.data_block =
            shares ? join(source, bytes, data_last(value)) : add(bytes, forward_time(node), data_last(value));
      }
    }
  }

  void place_gradients() {
    PlannedValue& logits = plan_.values[static_cast<std::size_t>(plan_.logits)];
    logits.gradient_block = add(logits.layout.bytes(), loss_time(), backward_time(logits.producer));
    for (int node = count_ - 1; node >= 0; --node) {
      const PlannedNode& planned = plan_.nodes[static_cast<std::size_t>(node)];
      const int source = plan_.values[static_cast<std::size_t>(planned.outputs[0])].gradient_block;
      for (std::size_t i = 0; i < planned.inputs.size(); ++i) {
        PlannedValue& value = plan_.values[static_cast<std::size_t>(planned.inputs[i])];
        if (!value.wants_gradient) continue;
        const Sharing sharing = planned.layer->gradient_sharing(static_cast<int>(i));
        const std::size_t bytes = value.layout.bytes();
        const int last = value.producer < 0 ? backward_time(node) : backward_time(value.producer);
        const bool shares = sharing == Sharing::same || (sharing == Sharing::in_place &&
                                                         may_overwrite(source, bytes, backward_time(node)));
        value.gradient_block = shares ? join(source, bytes, last) : add(bytes, backward_time(node), last);
      }
    }
  }

  NetworkPlan& plan_;
  int count_;
};

}  // namespace

NetworkPlan plan_network(const Graph& graph, Backend& backend, KernelChoices& choices,
                         std::span<const float> mean, std::span<const float> deviation) {
  if (graph.logits().id < 0) throw ConfigError("the graph has no logits: call classify() on its last value");
  const GraphInput& input = graph.input_shape();
  NetworkPlan plan;
  plan.image_input = backend.image_input({.batch = input.batch,
                                          .height = input.height,
                                          .width = input.width,
                                          .channels = input.channels,
                                          .mean = mean,
                                          .deviation = deviation});
  NodePlanner(graph, backend, choices, plan).run();
  MemoryPlanner(plan).run();
  return plan;
}

}  // namespace lockstep
