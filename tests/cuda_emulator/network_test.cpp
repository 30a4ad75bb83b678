// SPDX-License-Identifier: Apache-2.0
//
// Calls of a Network must be complete for every stream when they return, although they use their own streams.
// The device runs only work that the host waits for (HeldBack).
#include "models/network.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kernels/pixel_targets.h"
#include "models/network_state.h"
#include "models/networks/networks.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/temporary_folder.h"

namespace lockstep::network_test {
namespace {

using emulator::HeldBack;

constexpr Device kDevice{.kind = DeviceKind::cuda, .index = 0};
constexpr std::int64_t kBatch = 2, kChannels = 4, kClasses = 4;

// All layouts are plain, because other layouts use temporary memory whose release waits for the whole device.
// In half precision the layers compute with copies of the weights.
Network make_network(std::uint64_t seed) {
  Graph graph({.batch = kBatch, .height = 1, .width = 1, .channels = kChannels, .classes = kClasses});
  const Value hidden = graph.linear(graph.input(), {.features = 8}, "fc1");
  graph.classify(graph.linear(hidden, {.features = kClasses}, "fc2"));
  KernelChoices first;
  return Network(graph, {.device = kDevice, .precision = Precision::fp16, .seed = seed, .choices = &first});
}

// A batch in device memory.
class DeviceBatch {
 public:
  DeviceBatch() {
    Stream stream(kDevice, StreamUse::copy);
    std::vector<std::uint8_t> images(kBatch * kChannels);
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(30 * i);
    const std::vector<float> weights(kBatch, 1);
    stream.copy(images_.data(), images.data(), images.size());
    stream.copy(weights_.data(), weights.data(), kBatch * sizeof(float));
    stream.synchronize();
  }
  Batch input() const {
    return {.images = {images_.data(), {kBatch, 1, 1, kChannels}, DType::u8, kDevice},
            .labels = {labels_.data(), {kBatch}, DType::i32, kDevice},
            .weights = {weights_.data(), {kBatch}, DType::f32, kDevice},
            .samples = {}};
  }

 private:
  Buffer images_{kBatch * kChannels, kDevice};
  Buffer labels_{kBatch * sizeof(std::int32_t), kDevice};  // zeros
  Buffer weights_{kBatch * sizeof(float), kDevice};
};

// The loss, computed on a new stream.
float loss_of(Network& network, const DeviceBatch& batch) {
  Stream stream(kDevice, StreamUse::compute);
  network.forward(batch.input(), {.stream = stream, .mode = Mode::evaluation});
  return network.loss(stream).loss;
}

class NetworkOnADevice : public testing::Test {
 protected:
  void SetUp() override {
    Network network = make_network(1);
    for (const Parameter& each : network.parameters()) ASSERT_TRUE(each.layout.is_plain()) << each.name;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expected_ = loss_of(network, batch_);
    ASSERT_TRUE(std::isfinite(expected_));
    ASSERT_NE(expected_, kBatch * std::log(static_cast<float>(kClasses))) << "the weights must not be zero";
  }

  DeviceBatch batch_;
  float expected_ = 0;  // loss of the network with the first seed
};

TEST_F(NetworkOnADevice, HasItsValuesWhenTheConstructorReturns) {
  const HeldBack held_back;
  Network network = make_network(1);
  EXPECT_EQ(loss_of(network, batch_), expected_);
}

TEST_F(NetworkOnADevice, HasTheValuesOfAFileWhenLoadStateReturns) {
  const TemporaryFolder folder("loaded_state");
  const auto file = folder.path() / "state";
  Network network = make_network(1);
  Network other = make_network(2);
  EXPECT_NE(loss_of(other, batch_), expected_);
  {
    const HeldBack held_back;
    StateSnapshot(network).save(file);
    load_state(other, file);
    EXPECT_EQ(loss_of(other, batch_), expected_);
  }
}

// Gradients of all parameters, one after the other, in plain order.
enum class Labels { of_images, of_pixels };
std::vector<float> gradients_on(Device device, const std::function<void(Graph&)>& build, int* added = nullptr,
                                Labels kind = Labels::of_images) {
  constexpr std::int64_t kSide = 8, kImages = 2;
  const bool masks = kind == Labels::of_pixels;
  Graph graph({.batch = kImages,
               .height = kSide,
               .width = kSide,
               .channels = 3,
               .classes = kClasses,
               .masks = masks});
  build(graph);
  KernelChoices first;
  Network network(graph, {.device = device, .choices = &first});
  if (added != nullptr) {
    *added = static_cast<int>(
        std::ranges::count_if(network.plan().values, [](const PlannedValue& v) { return v.addend >= 0; }));
  }
  Buffer memory(network.values().size_bytes(), device);
  for (Parameter& parameter : network.parameters())
    parameter.gradient = memory.data() + parameter.offset * static_cast<std::int64_t>(sizeof(float));
  std::vector<std::uint8_t> pixels(kImages * kSide * kSide * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i * 37 % 251);
  const std::vector<std::int32_t> classes = {1, 2};
  const std::vector<float> ones(kImages, 1);
  Stream stream(device, StreamUse::compute);
  const auto on_device = [&](const auto& values) {
    Buffer buffer(values.size() * sizeof(values[0]), device);
    stream.copy(buffer.data(), values.data(), buffer.bytes());
    return buffer;
  };
  std::vector<std::uint8_t> of_pixels(kImages * kSide * kSide);
  for (std::size_t i = 0; i < of_pixels.size(); ++i)
    of_pixels[i] = i % 9 == 4 ? kIgnoredPixel : static_cast<std::uint8_t>(i / 3 % kClasses);
  const Buffer images = on_device(pixels), weights = on_device(ones),
               labels = masks ? on_device(of_pixels) : on_device(classes);
  const Pass pass{.stream = stream, .gradient_scale = 0.5f};
  network.forward({.images = {images.data(), {kImages, kSide, kSide, 3}, DType::u8, device},
                   .labels = masks ? Tensor{labels.data(), {kImages, kSide, kSide}, DType::u8, device}
                                   : Tensor{labels.data(), {kImages}, DType::i32, device},
                   .weights = {weights.data(), {kImages}, DType::f32, device},
                   .samples = {}},
                  pass);
  network.backward(pass);
  std::vector<float> all;
  for (const Parameter& parameter : network.parameters()) {
    std::vector<float> values(static_cast<std::size_t>(parameter.layout.shape().elements()));
    const StateTensor tensor{parameter.name, parameter.layout, static_cast<float*>(parameter.gradient)};
    read_plain(network.backend(), stream, tensor, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

void expect_the_cpus_gradients(const std::function<void(Graph&)>& build, int forks,
                               Labels kind = Labels::of_images) {
  int added = 0;
  const std::vector<float> expected = gradients_on({}, build, nullptr, kind),
                           actual = gradients_on(kDevice, build, &added, kind);
  EXPECT_EQ(added, forks);
  ASSERT_EQ(actual.size(), expected.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference =
        std::max(difference, std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])));
    size = std::max(size, std::abs(static_cast<double>(expected[i])));
  }
  EXPECT_GT(size, 0);
  EXPECT_LT(difference, 1e-4 * size);
}

void classify(Graph& graph, Value x) { graph.classify(graph.linear(x, {.features = kClasses}, "classes")); }

TEST(Masks, GradientsOfAUnetEqualTheCpus) {
  expect_the_cpus_gradients([](Graph& graph) { unet(graph, {.width = 8, .depth = 2}); }, 0,
                            Labels::of_pixels);
}

TEST(GradientsAtForks, AreAddedByTheLastConvolution) {
  expect_the_cpus_gradients([](Graph& graph) { build_network(graph, {.name = "resnet20"}); }, 9);
}

// The gradients at both ends of the fork's second branch share memory with the gradient of the convolution's
// output.
TEST(GradientsAtForks, AreAddedElsewhereIfTheirMemoryIsStillRead) {
  const ConvolutionOptions same{.channels = 8, .kernel = 3, .padding = 1};
  expect_the_cpus_gradients(
      [&](Graph& graph) {
        const Value x = graph.relu(graph.convolution(graph.input(), same, "a"));
        classify(graph, graph.add(graph.convolution(x, same, "b"), x));
      },
      1);
}

TEST(GradientsAtForks, AreAddedInTurnIfAValueHasThreeUses) {
  const ConvolutionOptions same{.channels = 8, .kernel = 1};
  expect_the_cpus_gradients(
      [&](Graph& graph) {
        const Value x = graph.relu(graph.convolution(graph.input(), same, "a"));
        const Value b = graph.batch_norm(graph.convolution(x, same, "b"), {}, "b norm");
        const Value c = graph.batch_norm(graph.convolution(x, same, "c"), {}, "c norm");
        classify(graph, graph.add(graph.add(b, c), x));
      },
      2);
}

// Layers whose inputs are plain on both devices get them from images that are not.
TEST(SmoothLayers, HaveTheGradientsOfTheCpu) {
  expect_the_cpus_gradients(
      [](Graph& graph) {
        const ConvolutionOptions same{.channels = 8, .kernel = 3, .padding = 1};
        Value x = graph.layer_norm(graph.convolution(graph.input(), same, "a"), {}, "a norm");
        x = graph.softmax(graph.activation(x, Activation::gelu));
        x = graph.flatten(graph.activation(graph.convolution(x, same, "b"), Activation::tanh));
        x = graph.activation(graph.linear(x, {.features = 12}, "c"), Activation::gelu);
        classify(graph, graph.activation(graph.layer_norm(x, {}, "c norm"), Activation::sigmoid));
      },
      0);
}

// The observer can measure a layer, because the device has finished it and has not begun the next one.
TEST_F(NetworkOnADevice, NotifiesTheObserverAfterALayerHasRun) {
  struct Done final : LayerObserver {
    void layer_ran(std::size_t node, Direction, std::int64_t, std::int64_t) override {
      EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess) << node;
      ++layers;
    }
    cudaStream_t stream = nullptr;
    int layers = 0;
  } observer;
  Network network = make_network(1);
  Stream stream(kDevice, StreamUse::compute);
  observer.stream = static_cast<cudaStream_t>(stream.native());
  const HeldBack held_back;
  network.forward(batch_.input(), {.stream = stream, .mode = Mode::evaluation, .observer = &observer});
  EXPECT_EQ(observer.layers, 2);
  EXPECT_EQ(network.loss(stream).loss, expected_);
}

}  // namespace
}  // namespace lockstep::network_test
