// SPDX-License-Identifier: Apache-2.0
//
// Runs planned networks step by step without arithmetic. The trace only records which tensor each byte of the
// arena holds, and every read must find its tensor complete. It knows what layers read and write, but no
// lifetimes.
#include "models/memory_plan.h"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/tensor/buffer.h"
#include "core/text/named_entries.h"
#include "models/networks/networks.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

class ArenaTrace {
 public:
  explicit ArenaTrace(const NetworkPlan& plan) : plan_(plan) {}

  // Returns the first read that did not find its tensor; "" if all did.
  std::string training_step() {
    const int count = static_cast<int>(plan_.nodes.size());
    write_value(0);
    for (int node = 0; node < count; ++node) forward(node, "forward");
    read(value_tag(plan_.logits), "the loss");
    write(gradient_tag(plan_.logits), value(plan_.logits).gradient_block);
    for (int node = count - 1; node >= 0; --node) {
      for (const NodeRange& block : plan_.repeated) {
        if (block.last == node) recompute(block);
      }
      backward(node);
    }
    return complaint_;
  }

 private:
  // The name of a tensor: value, gradient or saved memory.
  using Tag = std::string;
  struct Region {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::set<Tag> holds;
  };

  const PlannedValue& value(int index) const { return plan_.values[static_cast<std::size_t>(index)]; }
  const PlannedNode& node_at(int index) const { return plan_.nodes[static_cast<std::size_t>(index)]; }
  static Tag value_tag(int value) { return fmt::format("value {}", value); }
  static Tag gradient_tag(int value) { return fmt::format("gradient {}", value); }

  void write(const Tag& tag, int block) {
    if (block < 0) return;
    const std::size_t begin = plan_.arena.offsets[static_cast<std::size_t>(block)];
    const std::size_t end = begin + plan_.blocks[static_cast<std::size_t>(block)].bytes;
    std::erase_if(regions_, [&](const Region& other) { return other.begin < end && begin < other.end; });
    regions_.push_back({begin, end, {tag}});
  }
  void write_value(int index) { write(value_tag(index), value(index).data_block); }
  // Gives the same bytes another name.
  void alias(const Tag& tag, const Tag& source) {
    for (Region& region : regions_) {
      if (region.holds.contains(source)) region.holds.insert(tag);
    }
  }
  void read(const Tag& tag, const std::string& reader) {
    for (const Region& region : regions_) {
      if (region.holds.contains(tag)) return;
    }
    if (complaint_.empty()) complaint_ = fmt::format("{} does not find {}", reader, tag);
  }

  void forward(int index, const char* direction) {
    const PlannedNode& node = node_at(index);
    const std::string reader = fmt::format("{} of node {} {}", direction, index, node.name);
    const Sharing sharing = node.layer->output_sharing();
    const int shared = node.inputs[static_cast<std::size_t>(node.layer->shared_input())];
    // Writes that happen during a kernel's reads come first, so that a read of overwritten memory fails.
    write("workspace", plan_.scratch_block);
    if (node.saved_block >= 0) write(fmt::format("saved {}", index), node.saved_block);
    for (const int input : node.inputs) read(value_tag(input), reader);
    for (const int output : node.outputs) {
      const bool in_place = value(output).data_block == value(shared).data_block;
      if (sharing == Sharing::same) {
        alias(value_tag(output), value_tag(shared));
        continue;
      }
      if (in_place && sharing == Sharing::none) complain(reader + " may not overwrite its input");
      write_value(output);
      for (const int input : node.inputs) {
        if (value(input).data_block != value(output).data_block) read(value_tag(input), reader);
      }
    }
  }

  void recompute(const NodeRange& block) {
    for (int node = block.first; node < block.last; ++node) {
      if (node_at(node).recomputed) forward(node, "recomputation");
    }
  }

  void read_for_backward(int index, const std::string& reader) {
    const PlannedNode& node = node_at(index);
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.layer->backward_reads_input(static_cast<int>(i))) read(value_tag(node.inputs[i]), reader);
    }
    if (node.layer->backward_reads_output()) read(value_tag(node.outputs[0]), reader);
    if (node.saved_block >= 0) read(fmt::format("saved {}", index), reader);
  }

  void backward(int index) {
    const PlannedNode& node = node_at(index);
    if (!node.goes_backward) return;
    const std::string reader = fmt::format("backward of node {} {}", index, node.name);
    write("workspace", plan_.scratch_block);
    read_for_backward(index, reader);
    for (const int output : node.outputs) read(gradient_tag(output), reader);
    const int source = node.outputs[0];
    std::set<int> overwritten;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const int input = node.inputs[i];
      if (!value(input).wants_gradient) continue;
      const Sharing sharing = node.layer->gradient_sharing(static_cast<int>(i));
      const int block = value(input).gradient_block;
      if (sharing == Sharing::same) {
        alias(gradient_tag(input), gradient_tag(source));
        continue;
      }
      if (block == value(source).gradient_block && sharing == Sharing::none) {
        complain(reader + " may not overwrite its output's gradient");
      }
      overwritten.insert(block);
      write(gradient_tag(input), block);
    }
    // Gradients may only have overwritten values that share a block with them.
    read_for_backward(index, reader);
    for (const int output : node.outputs) {
      if (!overwritten.contains(value(output).gradient_block)) read(gradient_tag(output), reader);
    }
  }

  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
  }

  const NetworkPlan& plan_;
  std::vector<Region> regions_;
  std::string complaint_;
};

// Nested forks, a block that only forwards its input, in-place layers, and blocks at both ends of the
// network.
void tangled(Graph& graph) {
  Value x = graph.input();
  Value y;
  {
    const BlockScope scope(graph);
    const Value a = graph.convolution(x, {.channels = 8, .kernel = 3, .padding = 1}, "a");
    const Value b = graph.relu(graph.add(graph.add(a, a), graph.activation(a, Activation::relu6)));
    const Value c = graph.dropout(graph.pooling(b, {.kernel = 3, .stride = 1, .padding = 1}), 0.5, "c");
    y = graph.add(graph.batch_norm(c, b, {.activation = Activation::relu}, "d"), a);
  }
  {
    const BlockScope scope(graph);
    y = graph.add(graph.relu(graph.add(y, y)), y);
  }
  {
    const BlockScope scope(graph);
    y = graph.relu(y);
  }
  const Value kept = y;
  y = graph.add(graph.batch_norm(graph.convolution(y, {.channels = 8}, "e"), {}, "f"), kept);
  const BlockScope scope(graph);
  y = graph.relu(graph.linear(y, {.features = 16}, "g"));
  graph.classify(graph.linear(graph.add(y, y), {.features = graph.input_shape().classes}, "h"));
}

std::map<std::string, std::function<void(Graph&)>> graphs() {
  std::map<std::string, std::function<void(Graph&)>> all = {{"tangled", tangled}};
  const auto add_frozen = [&](const std::string& name, const std::vector<std::string>& prefixes,
                              const std::function<void(Graph&)>& build) {
    all[name] = [prefixes, build](Graph& graph) {
      build(graph);
      for (const std::string& prefix : prefixes) EXPECT_GT(graph.freeze(prefix), 0) << prefix;
    };
  };
  add_frozen("tangled after a frozen layer", {"a"}, tangled);
  add_frozen("tangled around a frozen layer", {"e"}, tangled);
  add_frozen("frozen resnet20", {"conv1", "bn1", "layer1", "layer3.0"},
             [](Graph& graph) { build_network(graph, {.name = "resnet20"}); });
  for (const std::string& name : names_in(network_table())) {
    if (name == kLayersNetwork) continue;
    all[name] = [name](Graph& graph) { build_network(graph, {.name = name}); };
  }
  return all;
}

NetworkPlan planned(const std::function<void(Graph&)>& build, bool masks = false) {
  Graph graph({.batch = 2, .height = 32, .width = 32, .channels = 3, .classes = 10, .masks = masks});
  build(graph);
  KernelChoices choices;
  return plan_network(graph, backend_for(Device{}), choices);
}

TEST(MemoryPlan, EveryReadFindsItsTensor) {
  Thinning thinning;
  for (const auto& [name, build] : graphs()) {
    NetworkPlan plan = planned(build, name == "unet");
    std::vector<Recompute> all = {Recompute::nothing, Recompute::blocks};
    for (const int layers : {2, 3, 4, 5, 7, 10, 16, 25, 60}) all.push_back(Recompute::every(layers));
    for (const Recompute& recompute : all) {
      if (!thinning.takes()) continue;
      plan_memory(plan, recompute);
      EXPECT_EQ(ArenaTrace(plan).training_step(), "") << name << ", recomputation " << described(recompute);
    }
  }
}

// Checks that the trace detects errors.
TEST(MemoryPlan, TheTraceFindsMissingRecomputationAndOverlaps) {
  NetworkPlan plan = planned([](Graph& graph) { cifar_resnet(graph, 1); });
  int found = 0;
  int recomputed = 0;
  for (std::size_t node = 0; node < plan.nodes.size(); ++node) {
    plan_memory(plan, Recompute::blocks);
    if (!plan.nodes[node].recomputed) continue;
    ++recomputed;
    plan.nodes[node].recomputed = false;
    found += !ArenaTrace(plan).training_step().empty();
  }
  EXPECT_GT(recomputed, 0);
  EXPECT_GT(found, recomputed / 2);
  plan_memory(plan, Recompute::nothing);
  for (std::size_t& offset : plan.arena.offsets) offset = 0;
  EXPECT_NE(ArenaTrace(plan).training_step(), "");
}

}  // namespace
}  // namespace lockstep
