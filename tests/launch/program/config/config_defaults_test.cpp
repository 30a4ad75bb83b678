// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config_defaults.h"

#include <gtest/gtest.h>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

Config with(std::vector<std::string> overrides) {
  const TemporaryFolder folder;
  folder.write("own.toml", {});
  overrides.emplace_back("data.path=x");
  return load_config((folder.path() / "own.toml").string(), overrides);
}

double rate(const std::vector<std::string>& overrides) { return with(overrides).schedule.learning_rate; }

TEST(ConfigDefaults, LearningRateDependsOnNetworkOptimizerAndBatch) {
  EXPECT_EQ(rate({"model.name=resnet18", "train.batch=256"}), 0.1) << "Goyal et al., 2017";
  EXPECT_EQ(rate({"model.name=resnet18", "train.batch=16"}), 0.0063);
  EXPECT_EQ(rate({"model.name=resnet18", "train.batch=16", "train.accumulation=8"}), 0.05);
  EXPECT_EQ(
      rate({"model.name=resnet18", "train.batch=16", "train.accumulation=8", "train.reproducible=true"}),
      0.0063)
      << "the same for 8 ranks";
  EXPECT_EQ(rate({"model.name=resnet18", "train.batch=1048576", "train.accumulation=1048576"}), 0.1);
  EXPECT_EQ(rate({"model.name=cnn", "train.batch=64"}), 0.05) << "as in the preset";
  EXPECT_EQ(rate({"model.name=resnet18", "train.batch=64", "optimizer.name=adamw"}), 0.0005);
  EXPECT_EQ(rate({"model.name=resnet18", "train.batch=64", "optimizer.name=lars"}), 0.5);
}

TEST(ConfigDefaults, GivenValuesAreKept) {
  EXPECT_EQ(rate({"model.name=resnet18", "optimizer.learning_rate=0.1"}), 0.1);
  EXPECT_EQ(with({"model.name=resnet18", "optimizer.learning_rate=0.1"}).schedule.warmup_epochs, 0);
  EXPECT_EQ(with({"model.name=resnet18", "schedule.warmup_epochs=3"}).schedule.warmup_epochs, 3);
}

TEST(ConfigDefaults, ChosenRateHasOneEpochOfWarmUp) {
  EXPECT_EQ(with({"train.epochs=5"}).schedule.warmup_epochs, 1);
  EXPECT_EQ(with({"train.epochs=1"}).schedule.warmup_epochs, 0.5);
}

TEST(ConfigDefaults, PrintedConfigurationRepeatsTheRun) {
  const Config config = with({"model.name=resnet18", "train.epochs=5"});
  const TemporaryFolder folder;
  const std::string text = to_toml(config);
  folder.write("printed.toml", Bytes(text.begin(), text.end()));
  EXPECT_EQ(to_toml(load_config((folder.path() / "printed.toml").string(), {})), text);
}

}  // namespace
}  // namespace lockstep
