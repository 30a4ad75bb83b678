// SPDX-License-Identifier: Apache-2.0
//
// train.batch = "auto" and train.precision = "auto" from the user's view.
#include <regex>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/program.h"

namespace lockstep {
namespace {

// Few samples limit the search: batches of at most 32 on each of 2 ranks.
const std::vector<std::string> kFewSamples = {
    "data.format=synthetic",    "data.synthetic.train_samples=64", "data.synthetic.test_samples=16",
    "data.synthetic.height=12", "data.synthetic.width=12",         "data.synthetic.channels=1"};

// Trains with key = "auto", and again with the value that the first run found and kept.
void expect_like_the_found_value(const std::string& key, const std::string& pattern) {
  const Workplace workplace("auto_" + key);
  const auto digest = workplace.path("digest");
  std::vector<std::string> settings = kFewSamples;
  settings.insert(settings.end(), {"model.name=cnn", "train.epochs=2", "run.checkpoint_every=5"});
  const auto with = [&](const std::string& value, const std::string& flags) {
    std::vector<std::string> all = settings;
    all.push_back("train." + key + "=" + value);
    return run_ranks(2, workplace.train(all, "--digest " + digest.string() + " " + flags));
  };
  const ProgramResult automatic = with("auto", "");
  ASSERT_EQ(automatic.exit_code, 0) << automatic.output;
  const std::string of_automatic = text_of(digest);
  std::smatch found;
  const std::string kept = text_of(workplace.path("run") / "config.toml");
  ASSERT_TRUE(std::regex_search(kept, found, std::regex("\n" + key + " = " + pattern + "\n"))) << kept;
  const std::string value = found[1].str();
  const std::regex line_of_choice("train\\." + key + ".*\"auto\": using (batch )?" + value + "\\b");
  EXPECT_TRUE(std::regex_search(automatic.output, line_of_choice)) << value << " in " << automatic.output;

  const ProgramResult given = with(value, "");
  ASSERT_EQ(given.exit_code, 0) << given.output;
  EXPECT_EQ(text_of(digest), of_automatic);

  // A checkpoint contains the value, so nothing is measured.
  const ProgramResult resumed = with("auto", "--resume auto");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(resumed.output.find("\"auto\""), std::string::npos) << resumed.output;
  EXPECT_EQ(text_of(digest), of_automatic);
  const std::string eval =
      fmt::format("{} eval {} --set {} --set train.{}=auto", program("lockstep"),
                  workplace.path("config.toml").string(), fmt::join(settings, " --set "), key);
  const ProgramResult evaluated = run_shell(eval + " --resume auto");
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.output;
  expect_failure(run_shell(eval + " --init export.safetensors"), exit_code::config,
                 {"train." + key + " = \"auto\""});
}

TEST(AutomaticSettings, TrainLikeTheSameBatchGivenExplicitly) {
  expect_like_the_found_value("batch", "(\\d+)");
}

TEST(AutomaticSettings, TrainLikeTheSamePrecisionGivenExplicitly) {
  expect_like_the_found_value("precision", "\"(fp32|bf16)\"");
}

TEST(AutomaticSettings, PrecisionIsMeasuredWithTheFoundBatch) {
  const Workplace workplace("auto_both");
  std::vector<std::string> settings = kFewSamples;
  settings.insert(settings.end(),
                  {"model.name=cnn", "train.steps=1", "train.batch=auto", "train.precision=auto"});
  const ProgramResult result = run_ranks(2, workplace.train(settings));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(std::regex_search(
      result.output, std::regex("train\\.batch.*using batch \\d+[^]*train\\.precision.*using (fp32|bf16)")))
      << result.output;
}

TEST(AutomaticSettings, AreRefusedOutsideTraining) {
  const Workplace workplace("auto_elsewhere");
  for (const std::string key : {"batch", "precision"}) {
    const std::string config = workplace.path("config.toml").string() + " --set train." + key + "=auto";
    expect_failure(run_shell(program("lockstep") + " plan " + config), exit_code::config,
                   {"train." + key + " = \"auto\"", "lockstep plan", "run.dir of a training"});
    const ProgramResult printed = run_shell(program("lockstep") + " train --print-config " + config);
    EXPECT_NE(printed.output.find("\n" + key + " = \"auto\"\n"), std::string::npos) << printed.output;
  }
  expect_failure(run_shell(workplace.train({"train.batch=\"big\""})), exit_code::config,
                 {"train.batch = \"big\"", "1048576", "\"auto\""});
}

}  // namespace
}  // namespace lockstep
