// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config_defaults.h"

#include <gtest/gtest.h>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

Config defaults_with(std::vector<std::string> overrides) {
  const TemporaryFolder folder;
  folder.write("own.toml", {});
  overrides.emplace_back("data.path=x");
  return load_config((folder.path() / "own.toml").string(), overrides);
}

double rate(const std::vector<std::string>& overrides) {
  return defaults_with(overrides).schedule.learning_rate;
}

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
  EXPECT_EQ(defaults_with({"model.name=resnet18", "optimizer.learning_rate=0.1"}).schedule.warmup_epochs, 0);
  EXPECT_EQ(defaults_with({"model.name=resnet18", "schedule.warmup_epochs=3"}).schedule.warmup_epochs, 3);
}

TEST(ConfigDefaults, ChosenRateHasOneEpochOfWarmUp) {
  EXPECT_EQ(defaults_with({"train.epochs=5"}).schedule.warmup_epochs, 1);
  EXPECT_EQ(defaults_with({"train.epochs=1"}).schedule.warmup_epochs, 0.5);
}

// Reads a printed configuration.
Config from_printed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const TemporaryFolder folder;
  folder.write("printed.toml", Bytes(text.begin(), text.end()));
  return load_config((folder.path() / "printed.toml").string(), overrides);
}

TEST(ConfigDefaults, PrintedConfigurationRepeatsTheRun) {
  const std::string text = to_toml(defaults_with({"model.name=resnet18", "train.epochs=5"}));
  EXPECT_EQ(to_toml(from_printed(text)), text);
}

TEST(ConfigDefaults, PrintedConfigurationHasNoRateForABatchThatIsNotFound) {
  const std::vector<std::string> automatic = {"model.name=resnet18", "train.batch=auto"};
  const std::string text = to_toml(defaults_with(automatic));
  EXPECT_EQ(to_toml(from_printed(text)), text);
  EXPECT_EQ(from_printed(text, {"train.batch=256"}).schedule.learning_rate, 0.1);
  const std::string given =
      to_toml(defaults_with({automatic[0], automatic[1], "optimizer.learning_rate=0.25"}));
  EXPECT_EQ(from_printed(given, {"train.batch=256"}).schedule.learning_rate, 0.25);
}

}  // namespace
}  // namespace lockstep
