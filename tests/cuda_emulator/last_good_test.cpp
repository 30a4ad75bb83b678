// SPDX-License-Identifier: Apache-2.0
//
// The state that a training saves when its loss becomes non-finite while the device runs the next step. Steps
// are enqueued operation by operation, which gives the host more chances to read at a wrong moment than
// recorded steps.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <regex>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/random.h"
#include "data/sample_order.h"
#include "launch/train/trainer.h"
#include "models/network_state.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep::last_good_test {
namespace {

constexpr Device kDevice{.kind = DeviceKind::cuda, .index = 0};
constexpr ImageShape kImage{8, 8, 1};
constexpr std::int64_t kBatch = 4, kSteps = 8, kFailing = 5;

// Nearly black images, except for one whose pixels exceed fp16 after the division by kDeviation: the loss of
// step kFailing is not finite, and that of the next step is.
constexpr float kDeviation = 1e-5f;
class OneBright final : public Dataset {
 public:
  std::int64_t size() const override { return kBatch * kSteps; }
  ImageShape image_shape() const override { return kImage; }
  std::int64_t classes() const override { return 4; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    const Random random(1, std::to_string(index));
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = index == bright_ ? 255 : static_cast<std::uint8_t>(random.bits(i) % 2);
    return static_cast<std::int32_t>(index % 4);
  }

 private:
  std::int64_t bright_ = SampleOrder(size(), 0, 0)(kBatch * (kFailing - 1));
};

using State = std::map<std::string, std::vector<float>>;
State state_of(Network& network) {
  State state;
  StateReader reader(network.device());
  network.visit_state(reader);  // of two statistics with one name, the ones that training updates come last
  for (const auto& tensor : reader.copy().tensors) state[tensor.name] = tensor.values;
  return state;
}

struct Stopped {
  std::string error;  // empty if all steps succeeded
  std::string file;   // path of the saved state
  State saved;
  State state;  // of the network at the end
};

// Trains at most this many steps.
Stopped train(const LossScaleOptions& loss_scale, std::int64_t steps, bool crosses = false,
              std::int64_t max_skipped_steps = 0) {
  Graph graph({.batch = kBatch, .height = 8, .width = 8, .channels = 1, .classes = 4});
  const Value normalised = graph.batch_norm(graph.input(), {}, "bn");  // the first tensors of the state
  const Value x = graph.convolution(normalised, {.channels = 8, .kernel = 3, .padding = 1}, "conv");
  graph.classify(
      graph.linear(graph.pooling(x, {.kind = PoolingKind::average, .global = true}), {.features = 4}, "fc"));
  const OneBright dataset;
  const auto communicator = make_self_communicator(kDevice);
  KernelChoices first;
  Network network(graph, {.device = kDevice,
                          .precision = Precision::fp16,
                          .mean = {0},
                          .deviation = {kDeviation},
                          .choices = &first});
  const std::size_t capacity = crosses ? 1 : 1 << 20;
  GradientBuckets buckets(network.parameters(), *communicator,
                          {.first_bytes = capacity, .middle_bytes = capacity, .one_by_one = crosses});
  const auto optimizer =
      make_optimizer(trained_memory(network, crosses ? buckets.bucket_gradients() : buckets.gradients()),
                     SgdOptions{}, loss_scale);
  BatchLoader train_loader(dataset, {}, {.batch = kBatch, .device = kDevice});
  BatchLoader test_loader(dataset, {}, {.batch = kBatch, .tail = Tail::pad, .device = kDevice});
  const TemporaryFolder folder("last_good");
  const auto file = folder.path() / "state";
  Stopped stopped{.error = {}, .file = file.string(), .saved = {}, .state = {}};
  {
    Timeline timeline;  // with a timeline, buckets are timed even on one rank
    Trainer trainer({network, buckets, *optimizer, train_loader, test_loader, *communicator, &timeline},
                    {.base = 0.02},
                    {.record_steps = false,
                     .cross_barrier = crosses,
                     .max_skipped_steps = max_skipped_steps,
                     .last_good = file});
    try {
      for (std::int64_t step = 0; step < steps; ++step) trainer.step();
      trainer.take_account();
    } catch (const Error& error) {
      stopped.error = error.what();
    }
    cudaDeviceSynchronize();
  }
  stopped.state = state_of(network);
  if (stopped.error.empty()) return stopped;
  load_state(network, file);
  stopped.saved = state_of(network);
  return stopped;
}

// Expects that the error names the failed step, where its values stopped being finite, and the saved file.
void expect_state_before_failure(const Stopped& stopped) {
  expect_parts(stopped.error, {"step 5", stopped.file});
  static const std::regex kPlace(R"(rank 0\b.*\bactivations\b.*\bbn\b)");
  EXPECT_TRUE(std::regex_search(stopped.error, kPlace)) << stopped.error;
  EXPECT_EQ(stopped.error.find("step 6"), std::string::npos) << stopped.error;
}

TEST(LastGood, IsTheStateBeforeTheFailedStep) {
  const Stopped stopped = train({}, kSteps);
  expect_state_before_failure(stopped);
  EXPECT_EQ(stopped.saved, train({}, kFailing - 1).state);
  EXPECT_EQ(stopped.state, stopped.saved) << "the next step must be skipped, too";
}

// Some buckets, and the forward pass of the next step, have changed the state when a later bucket is checked.
TEST(LastGood, IsTheStateBeforeTheFailedStepWithCrossBarrier) {
  const Stopped stopped = train({}, kSteps, true);
  expect_state_before_failure(stopped);
  EXPECT_EQ(stopped.saved, train({}, kFailing - 1).state);
  EXPECT_EQ(stopped.state, stopped.saved) << "the next step must be skipped, too";
}

// Independent of the device's position when the host detects the failed step.
TEST(LastGood, IsNotSavedIfTheStepMayBeSkipped) {
  const Stopped skipped = train({}, kSteps, false, 1);
  EXPECT_EQ(skipped.error, "");
  EXPECT_NE(skipped.state, train({}, kFailing - 1).state) << "later steps must be applied";
  for (const auto& [name, values] : skipped.state)
    EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) << name;
}

// The gradients of the next step are finite, so it is applied.
TEST(LastGood, IncludesTheNextStepIfTheLossScaleIsAtItsMinimum) {
  const LossScaleOptions least{.initial = 0x1p-10f, .rule = {.interval = 1000}};
  const Stopped stopped = train(least, kSteps);
  expect_parts(stopped.error, {"step 5", "step 6", stopped.file});
  EXPECT_EQ(stopped.saved, stopped.state);
  EXPECT_NE(stopped.saved, train(least, kFailing - 1).state);
}

}  // namespace
}  // namespace lockstep::last_good_test
