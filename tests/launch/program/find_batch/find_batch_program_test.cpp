// SPDX-License-Identifier: Apache-2.0
//
// `lockstep find-batch` from the user's view. On a busy machine it may have time for one batch only;
// keys_ranks.cpp compares the accuracy of several.

#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"

namespace lockstep {
namespace {

std::string find_batch(const Workplace& workplace, const std::string& flags) {
  return program("lockstep") + " find-batch " + workplace.path("config.toml").string() +
         " --set model.name=cnn " + flags;
}

TEST(FindBatch, MeasuresBatchesAndRecommendsOne) {
  const Workplace workplace("find_batch");
  const ProgramResult result = run_ranks(2, find_batch(workplace, "--seconds 3"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find('\r'), std::string::npos) << "a bar in piped output";
  for (const char* part : {"samples/s", "found_batch.toml"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in\n" << result.output;
  const auto run = workplace.path("run");
  const auto json = nlohmann::json::parse(text_of(run / "found_batch.json"));
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["configured"]["global_batch"], 16);
  ASSERT_GE(json["batches"].size(), 1u);
  for (const auto& batch : json["batches"]) {
    EXPECT_GT(batch["samples_per_second"], 0);
    EXPECT_GE(batch["busy"], 0);
    EXPECT_GT(batch["device_bytes"], 0);
    const std::regex row(fmt::format("\n +{} +[0-9]", batch["batch"].get<int>()));
    EXPECT_TRUE(std::regex_search(result.output, row)) << batch << " in\n" << result.output;
  }
  EXPECT_EQ(json["largest"]["batch"], 256) << "two ranks share 512 samples";
  EXPECT_GE(json["largest"]["run"], json["batches"].back()["batch"]);
  EXPECT_LE(json["largest"]["run"], 256);
  EXPECT_GT(json["gradient_noise"]["variance"], 0);
  EXPECT_NE(text_of(run / "found_batch.svg").find("<circle"), std::string::npos);

  const ProgramResult trained = run_shell(fmt::format("{} train {} --set train.steps=1", program("lockstep"),
                                                      (run / "found_batch.toml").string()));
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
}

TEST(FindBatch, TriesMultiplesThatSuitTheKernels) {
  const Workplace workplace("find_batch_multiples");
  const ProgramResult result =
      run_shell(find_batch(workplace, "--seconds 3 --set train.batch=51 --set train.threads=2"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(std::regex_search(result.output, std::regex("multiple.*\\b51\\b|\\b51\\b.*multiple")))
      << result.output;
  const auto json = nlohmann::json::parse(text_of(workplace.path("run") / "found_batch.json"));
  EXPECT_EQ(json["multiple"], 2);
  EXPECT_EQ(json["configured"]["batch"], 51);
  ASSERT_GE(json["batches"].size(), 1u);
  for (const auto& batch : json["batches"]) {
    if (batch["batch"] != 51) {
      EXPECT_EQ(batch["batch"].get<int>() % 2, 0);
    }
  }
}

TEST(FindBatch, RecommendsABatchInPlaceOfAuto) {
  const Workplace workplace("find_batch_auto");
  const ProgramResult result = run_shell(find_batch(workplace, "--seconds 1 --set train.batch=auto"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find("configured"), std::string::npos) << result.output;
  const auto json = nlohmann::json::parse(text_of(workplace.path("run") / "found_batch.json"));
  EXPECT_EQ(json["configured"]["batch"], "auto");
  const std::string setting = fmt::format("train.batch={}", json["recommended"]["batch"].get<int>());
  EXPECT_NE(result.output.find(setting), std::string::npos) << setting << " in\n" << result.output;
}

TEST(FindBatch, PrintsJsonAloneAndCountsOnRecomputation) {
  const Workplace workplace("find_batch_json");
  const ProgramResult result = run_shell(find_batch(
      workplace,
      "--seconds 2 --json --set model.name=resnet20 --set train.recompute=auto --set world.memory_limit=0.02 "
      "--out " +
          workplace.path("elsewhere").string() + " 2>/dev/null"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["ranks"], 1);
  EXPECT_GT(json["largest"]["batch"], 128) << "with recomputation about 210 fit, without it 76";
  EXPECT_TRUE(std::filesystem::exists(workplace.path("elsewhere") / "found_batch.svg"));
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run")));
}

TEST(FindBatch, RemovesItsBarBeforeTheTable) {
  const Workplace workplace("find_batch_terminal");
  const ProgramResult result = run_on_terminal(find_batch(workplace, "--seconds 1"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(std::regex_search(result.output, std::regex(R"(finding the batch.*\n\n +batch +samples/s)")))
      << result.output;
}

TEST(FindBatch, TrainsEachBatchForItsAccuracy) {
  const Workplace workplace("find_batch_accuracy");
  // A rate at which every batch learns: the machine's speed decides which batches are measured.
  const ProgramResult result = run_shell(find_batch(workplace,
                                                    "--seconds 1 --accuracy --epochs 2 --scaling none --set "
                                                    "optimizer.learning_rate=0.05 --set train.until_epoch=1 "
                                                    "--json 2>/dev/null"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);
  int configured = 0;
  for (const auto& batch : json["batches"]) {
    const auto& accuracy = batch["accuracy"];
    EXPECT_EQ(accuracy["equal_steps"]["steps"], 2 * 512 / 8) << "as the configured batch in two epochs";
    EXPECT_EQ(accuracy["equal_epochs"]["steps"], 2 * (512 / batch["batch"].get<int>()));
    EXPECT_GT(accuracy["equal_steps"]["test_accuracy"], 0.3);
    if (batch["batch"] == 8) {
      ++configured;
      EXPECT_EQ(accuracy["equal_epochs"]["test_accuracy"], accuracy["equal_steps"]["test_accuracy"]);
    }
  }
  EXPECT_EQ(configured, 1) << json;
}

TEST(FindBatch, RefusesASecondScalingOfTheRate) {
  const Workplace workplace("find_batch_scaling");
  expect_failure(run_shell(find_batch(workplace,
                                      "--scaling sqrt --set optimizer.learning_rate=0.1 --set "
                                      "optimizer.scale_rate=linear")),
                 exit_code::usage, {"--scaling sqrt", "optimizer.scale_rate"});
}

TEST(FindBatch, ComparesAccuracyIfTheConfiguredBatchCannotBeTrained) {
  const Workplace workplace("find_batch_large");
  const ProgramResult result =
      run_shell(find_batch(workplace, "--seconds 1 --accuracy --set train.batch=1024 --json 2>/dev/null"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto json = nlohmann::json::parse(text_of(workplace.path("run") / "found_batch.json"));
  EXPECT_LE(json["recommended"]["global_batch"], 512) << "the training set";
  const int steps = 512 / json["recommended"]["batch"].get<int>();
  int compared = 0;
  for (const auto& batch : json["batches"]) {
    if (!batch.contains("problem")) {
      ++compared;
      EXPECT_EQ(batch["accuracy"]["equal_steps"]["steps"], steps) << "as the recommended batch in an epoch";
    }
  }
  EXPECT_GE(compared, 1) << json;
}

}  // namespace
}  // namespace lockstep
