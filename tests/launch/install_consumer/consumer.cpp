// SPDX-License-Identifier: Apache-2.0
//
// A user's own network, dataset, schedule and command, next to everything that `lockstep` has.
#include "launch/program/commands/commands.h"
#include "launch/program/run.h"

using namespace lockstep;

// The class is given by the image's brightness.
class Brightness final : public Dataset {
 public:
  std::int64_t size() const override { return 2048; }
  ImageShape image_shape() const override { return {8, 8, 1}; }
  std::int64_t classes() const override { return 4; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    const auto label = static_cast<std::int32_t>(index % 4);
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = static_cast<std::uint8_t>(60 * label + (i + index) % 20);
    return label;
  }
};

void small_cnn(Graph& graph, const NetworkChoice&) {
  Value x =
      graph.convolution(graph.input(), {.channels = 8, .kernel = 3, .padding = 1, .bias = false}, "conv");
  x = graph.pooling(graph.batch_norm(x, {.activation = Activation::relu}, "bn"), {.kernel = 2, .stride = 2});
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc"));
}

// Batch norm sees 16 samples on each rank: at a constant rate the weights change faster than its running
// statistics follow, and evaluation results vary. With a final rate of zero they settle.
constexpr const char* kPreset = R"(
model.name = "small_cnn"
data.format = "brightness"
data.path = "nowhere"
train.batch = 16
train.epochs = 10
train.steps = 300
optimizer.learning_rate = 0.05
schedule.name = "line"
)";

std::string why(const Command&, std::span<const CommandHelp>) { return "to tell light from dark\n"; }
constexpr CommandEntry kWhy = {
    .name = "why", .description = "Say what this program is for", .example = "consumer why", .text = why};

int main(int argc, char** argv) {
  Registry registry;
  registry.formats.push_back(
      {"brightness", [](const DatasetOptions&, Split) { return std::make_unique<Brightness>(); }});
  registry.networks.push_back({"small_cnn", small_cnn});
  registry.schedules.push_back(
      {"line", [](const Schedule& schedule, std::int64_t step) { return 1 - schedule.progress(step); }});
  registry.commands.push_back(&kWhy);
  registry.presets.push_back({"brightness", kPreset});
  return run(argc, argv, registry);
}
