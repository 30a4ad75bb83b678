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

// Trains with both keys = "auto", and again with the values that the first run found and kept.
TEST(AutomaticSettings, TrainLikeTheSameValuesGivenExplicitly) {
  const Workplace workplace("auto");
  const auto digest = workplace.path("digest");
  // Few samples limit the search: batches of at most 8 on each of 2 ranks.
  const std::vector<std::string> settings = {"data.format=synthetic",
                                             "data.synthetic.train_samples=16",
                                             "data.synthetic.test_samples=16",
                                             "data.synthetic.height=12",
                                             "data.synthetic.width=12",
                                             "data.synthetic.channels=1",
                                             "model.name=cnn",
                                             "train.epochs=2",
                                             "run.checkpoint_every=5"};
  const auto with = [&](const std::string& batch, const std::string& precision, const std::string& flags) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), {"train.batch=" + batch, "train.precision=" + precision});
    return run_ranks(2, workplace.train(all, "--digest " + digest.string() + " " + flags));
  };
  const ProgramResult automatic = with("auto", "auto", "");
  ASSERT_EQ(automatic.exit_code, 0) << automatic.output;
  const std::string of_automatic = text_of(digest);
  const std::string kept = text_of(workplace.path("run") / "config.toml");
  std::smatch batch, precision;
  ASSERT_TRUE(std::regex_search(kept, batch, std::regex("\nbatch = (\\d+)\n"))) << kept;
  ASSERT_TRUE(std::regex_search(kept, precision, std::regex("\nprecision = \"(fp32|bf16)\"\n"))) << kept;
  // The precision is measured with the found batch.
  const std::regex choices("train\\.batch.*\"auto\": using batch " + batch[1].str() +
                           "\\b[^]*train\\.precision.*\"auto\": using " + precision[1].str() + "\\b");
  EXPECT_TRUE(std::regex_search(automatic.output, choices)) << kept << automatic.output;

  const ProgramResult given = with(batch[1], precision[1], "");
  ASSERT_EQ(given.exit_code, 0) << given.output;
  EXPECT_EQ(text_of(digest), of_automatic);

  // A checkpoint contains the values, so nothing is measured.
  const ProgramResult resumed = with("auto", "auto", "--resume auto");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(resumed.output.find("\"auto\""), std::string::npos) << resumed.output;
  EXPECT_EQ(text_of(digest), of_automatic);
  const std::string eval =
      fmt::format("{} eval {} --set {}", program("lockstep"), workplace.path("config.toml").string(),
                  fmt::join(settings, " --set "));
  const ProgramResult evaluated =
      run_shell(eval + " --set train.batch=auto --set train.precision=auto --resume auto");
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.output;
  for (const std::string key : {"train.batch", "train.precision"})
    expect_failure(run_shell(eval + " --set " + key + "=auto --init export.safetensors"), exit_code::config,
                   {key + " = \"auto\""});
}

// The search takes hundreds of steps, the training one.
TEST(AutomaticSettings, TheSearchForABatchDoesNotDiverge) {
  const Workplace workplace("auto_rate");
  const ProgramResult result =
      run_shell(workplace.train({"train.batch=auto", "optimizer.learning_rate=100", "train.steps=1"}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("using batch"), std::string::npos) << result.output;
}

TEST(AutomaticSettings, AreRefusedOutsideTraining) {
  const Workplace workplace("auto_elsewhere");
  const std::string config = workplace.path("config.toml").string();
  for (const std::string key : {"batch", "precision"})
    expect_failure(run_shell(fmt::format("{} plan {} --set train.{}=auto", program("lockstep"), config, key)),
                   exit_code::config,
                   {"train." + key + " = \"auto\"", "lockstep plan", "run.dir of a training"});
  const ProgramResult printed =
      run_shell(workplace.train({"train.batch=auto", "train.precision=auto"}, "--print-config"));
  for (const char* line : {"\nbatch = \"auto\"\n", "\nprecision = \"auto\"\n"})
    EXPECT_NE(printed.output.find(line), std::string::npos) << printed.output;
}

}  // namespace
}  // namespace lockstep
