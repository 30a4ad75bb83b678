// SPDX-License-Identifier: Apache-2.0
//
// What the calls of a Network leave done: the device does nothing that nobody waits for (HeldBack), and what
// a call enqueued on a stream of its own must be there for every other stream when it returns.
#include "models/network.h"

#include <cmath>
#include <filesystem>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "models/network_state.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep {
namespace {

using emulator::HeldBack;

constexpr Device kDevice{.kind = DeviceKind::cuda, .index = 0};
constexpr std::int64_t kBatch = 2, kChannels = 4, kClasses = 4;

// All of its layouts are plain: what is not goes through memory whose end waits for the whole device. In half
// precision its layers compute with copies of the weights.
Network make_network(std::uint64_t seed) {
  Graph graph({.batch = kBatch, .height = 1, .width = 1, .channels = kChannels, .classes = kClasses});
  const Value hidden = graph.linear(graph.input(), {.features = 8}, "fc1");
  graph.classify(graph.linear(hidden, {.features = kClasses}, "fc2"));
  KernelChoices first;
  return Network(graph, {.device = kDevice, .precision = Precision::fp16, .seed = seed, .choices = &first});
}

// A batch in the device's memory.
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

// On a stream that knows of nothing before.
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
    ASSERT_NE(expected_, kBatch * std::log(static_cast<float>(kClasses))) << "weights of zero";
  }

  DeviceBatch batch_;
  float expected_ = 0;  // of the first seed's network
};

TEST_F(NetworkOnADevice, HasItsValuesWhenItIsMade) {
  const HeldBack held_back;
  Network network = make_network(1);
  EXPECT_EQ(loss_of(network, batch_), expected_);
}

TEST_F(NetworkOnADevice, HasAFilesValuesWhenTheyAreLoaded) {
  const auto file = std::filesystem::temp_directory_path() / "lockstep_loaded_state";
  Network network = make_network(1);
  Network other = make_network(2);
  EXPECT_NE(loss_of(other, batch_), expected_);
  {
    const HeldBack held_back;
    StateSnapshot(network).save(file);
    load_state(other, file);
    EXPECT_EQ(loss_of(other, batch_), expected_);
  }
  std::filesystem::remove(file);
}

// Its times are a layer's because the device is done with it then, and has not begun the next one.
TEST_F(NetworkOnADevice, TellsOfALayerWhenItIsDone) {
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
}  // namespace lockstep
