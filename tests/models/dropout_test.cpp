// SPDX-License-Identifier: Apache-2.0
#include <set>

#include <gtest/gtest.h>

#include "core/error.h"
#include "models/dropout_layer.h"
#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"

namespace lockstep {
namespace {

const GraphInput kDropoutInput{.batch = 6, .height = 8, .width = 8, .channels = 3, .classes = 5};

using Logits = std::vector<float>;

Logits logits_of(NetworkFixture& fixture, const Batch& input, Mode mode) {
  fixture.network().forward(input, {.stream = fixture.stream(), .mode = mode});
  const std::span<const float> logits = fixture.network().logits().as<float>();
  return {logits.begin(), logits.end()};
}

Logits row(const Logits& logits, std::size_t sample) {
  const auto first = logits.begin() + static_cast<std::ptrdiff_t>(sample) * kDropoutInput.classes;
  return {first, first + kDropoutInput.classes};
}

TEST(DropoutLayer, EvaluationEqualsTheNetworkWithoutDropout) {
  NetworkFixture with(kDropoutInput, [](Graph& graph) { mlp(graph, {.dropout = 0.5}); });
  NetworkFixture without(kDropoutInput, [](Graph& graph) { mlp(graph); });
  Batch unnamed = with.input();
  unnamed.samples = {};
  EXPECT_EQ(logits_of(with, unnamed, Mode::evaluation), logits_of(without, unnamed, Mode::evaluation));
  EXPECT_NE(logits_of(with, with.input(), Mode::training), logits_of(without, unnamed, Mode::training));
  EXPECT_THROW(logits_of(with, unnamed, Mode::training), Error);
}

// The same six images in another order: each sample's logits follow it.
TEST(DropoutLayer, TheMaskFollowsTheSample) {
  NetworkFixture fixture(kDropoutInput, [](Graph& graph) { mlp(graph, {.dropout = 0.5}); });
  const Batch input = fixture.input();
  const Logits logits = logits_of(fixture, input, Mode::training);

  const std::size_t image = input.images.bytes() / 6;
  const auto* pixels = static_cast<const std::byte*>(input.images.data);
  std::vector<std::byte> moved_pixels;
  std::vector<SampleId> moved_samples;
  const std::vector<std::size_t> order = {5, 2, 0, 1, 4, 3};
  for (const std::size_t from : order) {
    moved_pixels.insert(moved_pixels.end(), pixels + from * image, pixels + (from + 1) * image);
    moved_samples.push_back(input.samples[from]);
  }
  Batch moved = input;
  moved.images.data = moved_pixels.data();
  moved.samples = moved_samples;
  const Logits moved_logits = logits_of(fixture, moved, Mode::training);
  for (std::size_t place = 0; place < order.size(); ++place) {
    EXPECT_EQ(row(moved_logits, place), row(logits, order[place])) << place;
  }
  for (SampleId& sample : moved_samples) ++sample.epoch;
  EXPECT_NE(logits_of(fixture, moved, Mode::training), moved_logits);
}

// A convolution writes its output in blocks of channels; the mask must not depend on that.
TEST(DropoutLayer, TheMaskDoesNotDependOnTheLayout) {
  Backend& backend = backend_for(Device{});
  const Layout plain({6, 32, 4, 4}, DType::f32);
  KernelChoices choices;
  const Layout blocked =
      backend
          .convolution({.batch = 6, .in_channels = 16, .in_height = 4, .in_width = 4, .out_channels = 32},
                       Layout({6, 16, 4, 4}, DType::f32), choices)
          ->output();
  if (blocked.is_plain()) GTEST_SKIP() << "no blocked layout on this processor";
  const auto elements = static_cast<std::size_t>(plain.shape().elements());
  std::vector<float> x(elements, 1.0f);
  const std::vector<SampleId> samples = {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}};
  Stream stream({}, StreamUse::compute);
  const Pass pass{.stream = stream};

  // The plain results, forward and backward, of a layer planned for a layout.
  const auto through = [&](const Layout& layout) {
    const auto layer = plan_dropout(backend, {.probability = 0.5, .purpose = "test"}, layout);
    Buffer input(layout.bytes(), {}), gradient(layout.bytes(), {}), scratch(plain.bytes(), {});
    backend.reorder(plain, layout)->run(stream, x.data(), input.data());
    std::vector<float> y(elements), x_gradient(elements);
    LayerMemory memory;
    memory.inputs[0] = input.data();
    memory.outputs[0] = y.data();
    memory.input_gradients[0] = gradient.data();
    memory.output_gradients[0] = x.data();
    memory.scratch = scratch.data();
    memory.samples = samples.data();
    layer->forward(pass, memory);
    layer->backward_inputs(pass, memory);
    backend.reorder(layout, plain)->run(stream, gradient.data(), x_gradient.data());
    EXPECT_EQ(y, x_gradient) << "ones must have the same mask forward and backward";
    return y;
  };
  const std::vector<float> y = through(plain);
  EXPECT_EQ(std::set<float>(y.begin(), y.end()), (std::set<float>{0.0f, 2.0f}));
  EXPECT_EQ(through(blocked), y);
}

}  // namespace
}  // namespace lockstep
