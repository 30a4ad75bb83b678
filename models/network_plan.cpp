// SPDX-License-Identifier: Apache-2.0
#include "models/network_plan.h"

#include <algorithm>

#include "core/error.h"
#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

// Backward has no gradient for a result that nothing uses.
void require_use(const Layer& layer, int uses) {
  if (uses > 0) return;
  throw ConfigError(
      fmt::format("layer {}: nothing uses its result; remove the layer, or pass its result to another layer "
                  "or classify()",
                  shown_name(layer)));
}

// Converts the graph into nodes; every value gets exactly one consumer.
class NodePlanner {
 public:
  NodePlanner(const Graph& graph, const LayerContext& context, NetworkPlan& plan)
      : graph_(graph),
        context_(context),
        plan_(plan),
        uses_left_(graph.layers().size() + 1, 0),
        activation_(graph.layers().size() + 1, Activation::none),
        applied_(graph.layers().size() + 1, false) {
    for (const Layer& layer : graph.layers()) {
      for (const Value input : layer.inputs) ++uses_left_[static_cast<std::size_t>(input.id)];
    }
    ++uses_left_[static_cast<std::size_t>(graph.logits().id)];
    for (const Layer& layer : graph.layers())
      require_use(layer, uses_left_[static_cast<std::size_t>(layer.output.id)]);
    fuse_activations();
  }

  void run() {
    current_ = {0};
    plan_.values.push_back({.layout = plan_.image_input->output()});
    std::vector<int> first_node;  // of each layer, including the forks of its inputs
    for (const Layer& layer : graph_.layers()) {
      first_node.push_back(static_cast<int>(plan_.nodes.size()));
      std::vector<int> inputs;
      std::vector<Layout> layouts;
      for (const Value input : layer.inputs) {
        inputs.push_back(use(input.id));
        layouts.push_back(plan_.values[static_cast<std::size_t>(inputs.back())].layout);
      }
      const bool input_gradient = std::ranges::any_of(
          inputs, [&](int input) { return plan_.values[static_cast<std::size_t>(input)].wants_gradient; });
      const auto output = static_cast<std::size_t>(layer.output.id);
      LayerContext context = context_;
      context.input_gradient = input_gradient;
      context.activation = activation_[output];
      context.applied = applied_[output];
      context.frozen = layer.frozen;
      context.adds_input_gradient = is_first_of_fork(inputs[0]);
      plan_.needs_samples |= std::holds_alternative<DropoutOptions>(layer.operation);
      append(plan_layer(context, layer.operation, layouts), layer.name, inputs, 1, layer.frozen);
      if (plan_.nodes.back().layer->adds_input_gradient()) {
        PlannedValue& first = plan_.values[static_cast<std::size_t>(inputs[0])];
        first.addend = plan_.nodes[static_cast<std::size_t>(first.producer)].outputs[1];
      }
      plan_.nodes.back().layer_index = static_cast<int>(&layer - graph_.layers().data());
      current_.push_back(plan_.nodes.back().outputs[0]);
    }
    first_node.push_back(static_cast<int>(plan_.nodes.size()));
    for (const LayerRange& block : graph_.blocks()) {
      plan_.blocks_of_graph.push_back({first_node[block.first], first_node[block.end] - 1});
    }
    plan_.logits = use(graph_.logits().id);
  }

 private:
  // Fuses an activation into the convolution or linear layer whose output only it uses.
  void fuse_activations() {
    for (const Layer& layer : graph_.layers()) {
      const auto* activation = std::get_if<ActivationOptions>(&layer.operation);
      if (activation == nullptr || !is_fused(activation->activation) || layer.inputs[0].id == 0) continue;
      const auto input = static_cast<std::size_t>(layer.inputs[0].id);
      const Operation& producer = graph_.layers()[input - 1].operation;
      const bool affine = std::holds_alternative<ConvolutionOptions>(producer) ||
                          std::holds_alternative<LinearOptions>(producer);
      if (!affine || uses_left_[input] != 1) continue;
      activation_[input] = activation->activation;
      applied_[static_cast<std::size_t>(layer.output.id)] = true;
    }
  }

  // The planned value for one use of a graph value; appends a fork if more uses follow.
  int use(int graph_value) {
    const auto index = static_cast<std::size_t>(graph_value);
    if (uses_left_[index]-- == 1) return current_[index];
    const int source = current_[index];
    append(plan_fork(context_.backend, plan_.values[static_cast<std::size_t>(source)].layout), "", {source},
           2);
    current_[index] = plan_.nodes.back().outputs[1];
    return plan_.nodes.back().outputs[0];
  }

  // True for the first use of a forked value: its consumer runs backward last.
  bool is_first_of_fork(int value) const {
    const int producer = plan_.values[static_cast<std::size_t>(value)].producer;
    if (producer < 0) return false;
    const PlannedNode& node = plan_.nodes[static_cast<std::size_t>(producer)];
    return node.outputs.size() == 2 && node.outputs[0] == value;
  }

  void append(std::unique_ptr<PlannedLayer> layer, const std::string& name, std::vector<int> inputs,
              int outputs, bool frozen = false) {
    const int node = static_cast<int>(plan_.nodes.size());
    bool wants_gradient = !layer->parameter_specs().empty() && !frozen;
    for (const int input : inputs) {
      PlannedValue& value = plan_.values[static_cast<std::size_t>(input)];
      value.consumer = node;
      value.wants_gradient = value.wants_gradient || layer->backward_is_one_kernel();
      wants_gradient = wants_gradient || value.wants_gradient;
    }
    PlannedNode made{.layer = std::move(layer),
                     .name = name,
                     .inputs = std::move(inputs),
                     .outputs = {},
                     .frozen = frozen,
                     .goes_backward = wants_gradient};
    for (int i = 0; i < outputs; ++i) {
      made.outputs.push_back(static_cast<int>(plan_.values.size()));
      plan_.values.push_back(
          {.layout = made.layer->output(), .producer = node, .wants_gradient = wants_gradient});
    }
    plan_.nodes.push_back(std::move(made));
  }

  const Graph& graph_;
  LayerContext context_;
  NetworkPlan& plan_;
  // By graph value:
  std::vector<int> uses_left_;
  std::vector<int> current_;
  std::vector<Activation> activation_;  // applied by the layer that makes the value
  std::vector<bool> applied_;           // the activation that makes the value is fused into its producer
};

}  // namespace

NetworkPlan plan_network(const Graph& graph, Backend& backend, KernelChoices& choices,
                         const PlanOptions& options) {
  if (graph.logits().id < 0) throw ConfigError("the graph has no logits: call classify() on its last value");
  const GraphInput& input = graph.input_shape();
  NetworkPlan plan;
  plan.image_input = backend.image_input({.batch = input.batch,
                                          .height = input.height,
                                          .width = input.width,
                                          .channels = input.channels,
                                          .source = input.type,
                                          .mean = options.mean,
                                          .deviation = options.deviation,
                                          .type = storage_type(options.precision),
                                          .augmentation = options.augmentation});
  plan.needs_samples = options.augmentation.any();
  const LayerContext context{.backend = backend,
                             .choices = choices,
                             .tf32 = options.precision == Precision::tf32,
                             .batch_norm_ranks = options.batch_norm_ranks};
  NodePlanner(graph, context, plan).run();
  return plan;
}

}  // namespace lockstep
