// SPDX-License-Identifier: Apache-2.0
//
// Gradients that are not finite: all ranks skip the same steps within the limit, and the error that ends the
// training names the rank and the layer where it began.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/files/file_text.h"
#include "core/files/safetensors.h"
#include "tests/core/file_size_limit.h"
#include "tests/launch/train/state_of.h"
#include "tests/launch/train/thread_training.h"
#include "tests/matches_in.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The message of the rank that failed, without the prefix of run_thread_ranks(), which names that rank.
std::string failure_of(const ThreadTraining& training) {
  const std::string message = message_of<std::exception>([&] { train_on_threads(training); });
  const std::string prefix = " threw: ";
  const std::size_t at = message.find(prefix);
  return at == std::string::npos ? message : message.substr(at + prefix.size());
}

Parameter& parameter_of(Network& network, const std::string& name) {
  for (Parameter& parameter : network.parameters())
    if (parameter.name == name) return parameter;
  throw std::runtime_error("no parameter has the name " + name);
}

// Applies the fault after the second step, on rank 1 only.
ThreadTraining with(const std::function<void(Network&, Optimizer&)>& fault) {
  ThreadTraining training{.ranks = 2, .steps = 4};
  training.after_step = [fault](int rank, int step, Trainer&, Network& network, Optimizer& optimizer) {
    if (rank == 1 && step == 2) fault(network, optimizer);
  };
  return training;
}

std::vector<float> saved_tensor(const std::filesystem::path& file, const std::string& name) {
  SafetensorsReader reader(file);
  const SafetensorsEntry* entry = reader.find(name);
  if (entry == nullptr) throw std::runtime_error("no tensor has the name " + name);
  std::vector<float> values(static_cast<std::size_t>(entry->shape.elements()));
  reader.read(*entry, std::as_writable_bytes(std::span(values)));
  return values;
}

// The first clause of the message, before the origin. It names the ranks whose loss is not finite.
std::string first_clause(const std::string& error) { return error.substr(0, error.find(';')); }

// Expects the message to name the loss of rank 1, but not rank 0, whose loss and state are finite.
void expect_loss_of_rank_1(const std::string& error) {
  expect_parts(first_clause(error), {"loss", "rank 1"});
  EXPECT_EQ(matches_in(error, R"(\branks? ([0-9]+, )*0\b)"), 0) << error;
}

// Activations keep NaN, so that it reaches the loss from any layer.
TEST(NotFinite, NanInTheFirstLayerReachesTheLoss) {
  const std::string error = failure_of(
      with([](Network& network, Optimizer&) { parameter_of(network, "conv1.weight").value[0] = kNan; }));
  expect_loss_of_rank_1(error);
  expect_parts(error, {"step 3", "parameter", "conv1.weight"});
}

// The layer's parameters are finite.
TEST(NotFinite, ActivationsAreNamedWithTheirLayer) {
  const std::string error = failure_of(with([](Network& network, Optimizer&) {
    const Parameter& weight = parameter_of(network, "conv2.weight");
    for (std::int64_t i = 0; i < weight.layout.physical_elements(); ++i) weight.value[i] = 3e38f;
  }));
  expect_parts(error, {"rank 1", "activations", "conv2"});
  EXPECT_EQ(error.find("conv2.weight"), std::string::npos) << error;
}

// Gradients that are applied a step late are judged before a checkpoint, too.
TEST(NotFinite, LateGradientsBeforeACheckpointAreNamedWithTheirOrigin) {
  ThreadTraining training{.ranks = 2, .steps = 4, .buckets = {.delayed = true}};
  training.after_step = [](int rank, int step, Trainer& trainer, Network& network, Optimizer&) {
    if (rank == 1 && step == 2) parameter_of(network, "fc2.weight").value[3] = kNan;
    if (step == 3) trainer.prepare_to_save();
  };
  const std::string error = failure_of(training);
  expect_loss_of_rank_1(error);
  expect_parts(error, {"step 3", "parameter", "fc2.weight"});
}

// Activations and loss are finite: half precision overflows with such a loss scale.
TEST(NotFinite, GradientIsNamed) {
  const std::string error =
      failure_of({.ranks = 2, .steps = 1, .precision = Precision::fp16, .loss_scale = {.initial = 0x1p40}});
  expect_parts(error, {"step 1", "gradient", "ranks 0, 1", "fc2.weight"});
  EXPECT_EQ(first_clause(error).find("ranks 0, 1"), std::string::npos) << "the loss is finite: " << error;
}

// All ranks skip the step, whichever rank fails, and it leaves no trace.
TEST(NotFinite, ConsecutiveStepsAreSkippedOnAllRanks) {
  std::vector<std::vector<std::int64_t>> done(2);
  ThreadTraining training{.ranks = 2, .steps = 6, .max_skipped_steps = 2};
  float sound = 0;
  training.after_step = [&](int rank, int step, Trainer& trainer, Network& network, Optimizer& optimizer) {
    Stream stream(network.device(), StreamUse::compute);
    done[static_cast<std::size_t>(rank)].push_back(optimizer.read_control(stream).step - 1);
    EXPECT_EQ(trainer.steps(), step);
    if (rank != 1) return;
    float& value = parameter_of(network, "fc2.weight").value[0];
    if (step == 2) sound = std::exchange(value, kNan);
    if (step == 4) value = sound;
  };
  const std::vector<TrainedRank> trained = train_on_threads(training);
  EXPECT_EQ(trained[0].digest, trained[1].digest);
  EXPECT_EQ(done[0], (std::vector<std::int64_t>{1, 2, 2, 2, 3, 4}));
  EXPECT_EQ(done[1], done[0]);
  training.max_skipped_steps = 1;
  const std::string error = failure_of(training);
  expect_loss_of_rank_1(error);
  expect_parts(error, {"step 4"});
}

// Otherwise a job that is restarted again and again would never end.
TEST(NotFinite, ResumedTrainingCountsTheStepsSkippedBefore) {
  std::vector<StateCopy> saved(2);
  ThreadTraining training{.ranks = 2, .steps = 4, .max_skipped_steps = 2};
  float sound = 0;
  training.after_step = [&](int rank, int step, Trainer& trainer, Network& network, Optimizer&) {
    if (step == 4) saved[static_cast<std::size_t>(rank)] = state_of(trainer);  // two steps were skipped
    if (rank != 1) return;
    float& value = parameter_of(network, "fc2.weight").value[0];
    if (step == 2) sound = std::exchange(value, kNan);
    if (step == 4) value = sound;
  };
  train_on_threads(training);
  training.after_step = [&](int rank, int step, Trainer& trainer, Network&, Optimizer&) {
    if (step == 1) set_state(trainer, saved[static_cast<std::size_t>(rank)]);
  };
  expect_parts(first_clause(failure_of(training)), {"step 5"});
  for (StateCopy& state : saved) {  // as an earlier version saved it
    ASSERT_EQ(
        std::erase_if(state.values, [](const auto& each) { return each.name == "train.bad_steps_in_a_row"; }),
        1u);
  }
  expect_parts(first_clause(failure_of(training)), {"step 7"});
}

// A dynamic loss scale falls to its lower limit; an overflow there has another cause.
TEST(NotFinite, OverflowAtTheMinimumLossScaleEndsTheTraining) {
  ThreadTraining training{.ranks = 2,
                          .steps = 40,
                          .precision = Precision::fp16,
                          .loss_scale = {.initial = 8, .rule = {.interval = 1}},
                          .max_skipped_steps = 3};
  std::vector<float> scales;
  training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer& optimizer) {
    if (step == 1) parameter_of(network, "fc2.weight").value[0] = kNan;
    Stream stream(network.device(), StreamUse::compute);
    if (rank == 0) scales.push_back(optimizer.read_control(stream).loss_scale);
  };
  const std::string error = failure_of(training);
  expect_parts(first_clause(error), {"loss", "ranks 0, 1"});
  ASSERT_FALSE(scales.empty());
  EXPECT_EQ(scales.front(), 16);
  EXPECT_EQ(scales.back(), 0x1p-10f);
  EXPECT_EQ(std::ranges::count(scales, 0x1p-10f), 4);
}

// The state is saved by a sound rank, also if rank 0 is the damaged one.
TEST(NotFinite, LastGoodStateComesFromACorrectRank) {
  const TemporaryFolder folder("not_finite");
  const std::filesystem::path file = folder.path() / "last_good.safetensors";
  ThreadTraining training{.ranks = 2, .steps = 4};
  std::vector<float> before;
  training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
    if (rank != 0 || step != 2) return;
    float* values = parameter_of(network, "fc2.bias").value;
    before.assign(values, values + 4);
    values[1] = kNan;
  };
  training.last_good = file;
  const std::string error = failure_of(training);
  expect_parts(error, {"rank 0", "parameter", "fc2.bias"});
  const std::vector<float> saved = saved_tensor(file, "fc2.bias");
  ASSERT_EQ(before.size(), 4u);
  ASSERT_GE(saved.size(), 4u);
  EXPECT_EQ(std::vector<float>(saved.begin(), saved.begin() + 4), before);
}

TEST(NotFinite, LinkAtTheLastGoodStateIsReplacedOnceTheStateIsSaved) {
  const TemporaryFolder folder("not_finite");
  const std::filesystem::path file = folder.path() / "last_good.safetensors",
                              elsewhere = folder.path() / "elsewhere";
  std::ofstream(elsewhere) << "precious";
  std::filesystem::create_symlink(elsewhere, file);
  ThreadTraining training =
      with([](Network& network, Optimizer&) { parameter_of(network, "fc2.weight").value[3] = kNan; });
  training.last_good = file;
  {
    const FileSizeLimit limit(16);
    expect_parts(failure_of(training), {file.string(), "File too large"});
  }
  EXPECT_EQ(file_text(file), "precious") << "the link stays";
  expect_parts(failure_of(training), {file.string()});
  EXPECT_EQ(file_text(elsewhere), "precious");
  EXPECT_FALSE(saved_tensor(file, "fc2.bias").empty());
}

// Ranks that train apart share the frozen layers, too.
TEST(NotFinite, LastGoodFrozenLayersComeFromACorrectRank) {
  for (const std::int64_t average_every : {0, 2}) {
    const TemporaryFolder folder("not_finite");
    const std::filesystem::path file = folder.path() / "last_good.safetensors";
    ThreadTraining training{.ranks = 2, .steps = 4, .average_every = average_every, .last_good = file};
    training.build = [](Graph& graph) {
      build_network(graph, {.name = "cnn", .batch_norm = false});
      graph.freeze("conv1");
    };
    std::vector<float> sound;  // of rank 1
    training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
      if (step != 2) return;
      if (rank == 0) network.frozen()[0] = kNan;
      if (rank != 1) return;
      const StateCopy state = state_of(network);
      sound = std::ranges::find(state.tensors, "conv1.weight", &StateCopy::Tensor::name)->values;
    };
    const std::string error = failure_of(training);
    expect_parts(error, {"rank 0", "parameter", "conv1.weight"});
    EXPECT_FALSE(sound.empty());
    EXPECT_EQ(saved_tensor(file, "conv1.weight"), sound) << average_every;
  }
}

}  // namespace
}  // namespace lockstep
