// SPDX-License-Identifier: Apache-2.0
//
// The saved trainings that a configuration may resume or evaluate, and their kernels.
#include "launch/program/resume/resume.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "launch/program/setup/network_planning.h"
#include "launch/train/checkpoint/shard.h"
#include "launch/train/checkpoint/store.h"
#include "tests/launch/train/grays.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class FindSaved : public testing::Test {
 protected:
  using Settings = std::vector<std::string>;

  Config config(const Settings& more) const {
    Settings all = {"data.format=synthetic", "optimizer.learning_rate=0.1", "train.batch=8"};
    all.insert(all.end(), more.begin(), more.end());
    Config made = config_of(all, Registry());
    made.run_dir = folder_.path().string();
    return made;
  }
  // Saves step 10 of a training on these ranks. more: lines after the configuration.
  void save(int ranks, const Settings& settings = {}, const std::string& more = "") const {
    const Config saved = config(settings);
    Manifest manifest{.lockstep = "0.1.0",
                      .steps = 10,
                      .epochs = 1,
                      .ranks = ranks,
                      .global_batch = saved.loader.batch * ranks,
                      .device = "cpu",
                      .data = "ten images",
                      .kernels = "{}",
                      .config = to_toml(saved) + more,
                      .test_accuracy = {},
                      .files = {}};
    const CheckpointStore store(folder_.path());
    store.make_partial(manifest.steps);
    const auto write_state = [&](const std::string& name, StateScope scope, const std::string& value) {
      manifest.files.push_back(write_shard(store.partial(manifest.steps), name,
                                           {.tensors = {{"bn.running_mean", scope, {2}, {1, 2}}},
                                            .values = {{value, scope, std::int64_t{10}}}}));
    };
    write_state(shared_shard(), StateScope::replicated, "train.steps");
    for (int rank = 0; rank < ranks; ++rank)
      write_state(rank_shard(rank), StateScope::per_rank, "epoch.samples");
    store.commit(manifest);
  }
  // The error on one rank; "" if there is none. with: accepted keys.
  std::string refusal(const Settings& settings, const Settings& with = {}, bool evaluates = false,
                      const std::string& size = "same") const {
    const std::unique_ptr<Communicator> host = make_self_communicator();
    const ResumeFlags flags{.from = ResumeFlags::kAuto, .with = with, .size = size, .evaluates = evaluates};
    return message_of([&] { find_saved(*host, config(settings), flags, Registry()); });
  }

  const TemporaryFolder folder_{"find_saved"};
};

TEST_F(FindSaved, DifferencesAreAcceptedByKey) {
  save(1);
  EXPECT_EQ(refusal({}), "");
  for (const char* setting : {"run.keep=9", "comm.cross_barrier=true"})
    EXPECT_EQ(refusal({setting}), "") << setting;
  for (const std::string setting :
       {"train.label_smoothing=0.1", "train.steps=20", "comm.compress_within_node=true"})
    expect_parts(refusal({setting}), {"--resume-with " + setting.substr(0, setting.find('='))});
  EXPECT_EQ(refusal({"train.label_smoothing=0.1"}, {"train.label_smoothing"}), "");
  expect_parts(refusal({}, {"optimizer.rate"}), {"--resume-with optimizer.rate"});
}

TEST_F(FindSaved, KeysWhoseStateIsNotSavedAreRefusedAlsoIfAccepted) {
  save(1);
  struct Change {
    Settings settings;
    std::string key;
  };
  for (const Change& change :
       {Change{{"train.average_every=4", "train.average_after=10"}, "train.average_every"},
        Change{{"comm.topology=ring"}, "comm.topology"}, Change{{"train.seed=9"}, "train.seed"}}) {
    const Settings with = {change.key, "train.average_after"};
    const std::string error = refusal(change.settings, with);
    expect_parts(error, {change.key, "--init"});
    EXPECT_EQ(error.find("--resume-with"), error.npos) << error;
    EXPECT_EQ(refusal(change.settings, with, true), "") << "an evaluation takes no step";
  }
}

TEST_F(FindSaved, KeysThatTheProgramLacksAreRefused) {
  save(1, {}, "\n[old]\nkey = 3\n");
  const std::string error = refusal({});
  expect_parts(error, {"old.key", "0.1.0"});
  EXPECT_EQ(error.find("--resume-with"), error.npos) << "it accepts no such key: " << error;
}

TEST_F(FindSaved, ARefusedBatchNamesTheSamplesToDivide) {
  save(4);
  for (const char* batch : {"train.batch=20", "train.batch=48"})
    EXPECT_EQ(numbers_named_in(refusal({batch}, {"train.batch"})).back(), 32) << batch;
}

// The state belongs to each rank.
TEST_F(FindSaved, RanksThatTrainApartResumeOnlyOnTheirNumber) {
  for (const std::string setting : {"train.average_every=4", "train.staleness=1", "comm.topology=ring"}) {
    save(4, {setting});
    expect_parts(refusal({setting}, {}, false, ResumeFlags::kAnySize),
                 {"4 ranks", setting.substr(0, setting.find('='))});
  }
}

// Otherwise ranks would have no last average, or different parameters in a synchronous step.
TEST_F(FindSaved, LocalSgdStaysInItsPhase) {
  const auto settings = [](int after) {
    return Settings{"train.average_every=4", fmt::format("train.average_after={}", after)};
  };
  for (const auto& [before, now] : {std::pair(20, 5), std::pair(5, 20)}) {
    save(1, settings(before));
    expect_parts(refusal(settings(now), {"train.average_after"}),
                 {fmt::format("train.average_after = {}", now), "step 10"});
  }
}

TEST_F(FindSaved, AnyNumberOfRanksEvaluates) {
  for (const char* setting :
       {"train.average_every=4", "train.staleness=1", "comm.topology=ring", "train.label_smoothing=0.1"}) {
    save(4, {setting});
    EXPECT_EQ(refusal({setting}, {}, true), "");
    EXPECT_NE(refusal({setting}), "") << "a step would have other samples";
  }
}

// Another version, or a program with its own parts, saved the configuration.
TEST(NetworkSettings, LeaveOutKeysThatTheProgramLacks) {
  const std::vector<std::string> saved = {"data.format=synthetic", "model.name=cnn", "model.dropout=0.25"};
  Manifest manifest;
  manifest.config = to_toml(config_of(saved)) + "\n[data]\nold = 1\n[comm]\nown.density = 0.5\n";
  const NetworkSettings found = network_settings(manifest, Registry());
  EXPECT_EQ(found.unknown, std::vector<std::string>{"data.old"});
  const Config config = config_of(found.settings);
  EXPECT_EQ(config.model.name, "cnn");
  EXPECT_DOUBLE_EQ(config.model.dropout, 0.25);
}

// Another version or another processor may have saved the checkpoint.
TEST(SavedKernels, MissingOnesAreReplacedWithAWarning) {
  const std::vector<std::string> settings = {"data.format=synthetic",       "model.name=mlp",
                                             "optimizer.learning_rate=0.1", "train.batch=8",
                                             "kernels.choose=time",         "kernels.cache=none"};
  const Config config = config_of(settings);
  const std::unique_ptr<Communicator> host = make_self_communicator();
  const Grays images({8, 8, 1});
  const MemoryBudget budget({}, [](std::int64_t) { return MemoryNeed(); });
  // The kernels of a network that is planned with these saved ones; "": none are saved.
  const auto planned_with = [&](const std::string& kernels) {
    NetworkPlanning planning(config, find_network(network_table(), config.model.name), images, Device(), 1);
    if (!kernels.empty()) planning.prefer(kernels);
    planning.plan(*host, budget);
    return planning.choices();
  };
  const std::string saved = planned_with("");
  const std::string name = "\"inner product\"";  // in fp32 a dense layer has no other candidate
  std::string other = saved;
  ASSERT_NE(other.find(name), other.npos) << other;
  other.replace(other.find(name), name.size(), "\"removed\"");
  testing::internal::CaptureStderr();
  EXPECT_EQ(planned_with(saved), saved);
  EXPECT_EQ(lines_naming(testing::internal::GetCapturedStderr(), "warning"), "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(planned_with(other), saved);
  expect_parts(testing::internal::GetCapturedStderr(), {"warning", " 1 of the ", "saved training"});
}

// A new training would begin, and move the checkpoints aside.
TEST_F(FindSaved, FlagsOfAResumeAreRefusedWithNever) {
  const std::unique_ptr<Communicator> host = make_self_communicator();
  const auto error_of = [&](const ResumeFlags& flags) {
    return message_of<Error>([&] { find_saved(*host, config({}), flags, Registry()); });
  };
  expect_parts(error_of({.with = {"train.steps"}}), {"--resume-with train.steps", "--resume never"});
  expect_parts(error_of({.size = ResumeFlags::kAnySize}), {"--resume-size any", "--resume never"});
  EXPECT_EQ(error_of({}), "");
}

}  // namespace
}  // namespace lockstep
