// SPDX-License-Identifier: Apache-2.0
//
// What `lockstep eval` says of a trained network is what training said of it.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program.h"

namespace lockstep {
namespace {

using EvalJson = nlohmann::json;

std::string eval_of(const Workplace& workplace, const std::string& flags) {
  return program("lockstep") + " eval " + workplace.path("config.toml").string() + " " + flags;
}

EvalJson evaluated(int ranks, const std::string& command) {
  const ProgramResult result = run_ranks(ranks, command + " --json");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with('{')) return EvalJson::parse(line);
  ADD_FAILURE() << "no JSON:\n" << result.output;
  return {};
}

TEST(EvalProgram, TellsWhatTrainingTold) {
  const Workplace workplace("eval");
  const std::string weights = workplace.path("trained.safetensors").string();
  const ProgramResult trained =
      run_ranks(2, workplace.train({"run.metrics=f1", "run.checkpoint_every=1000", "train.epochs=2"},
                                   "--export " + weights));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  std::ifstream metrics(workplace.path("run/metrics.jsonl"));
  EvalJson last;
  for (std::string line; std::getline(metrics, line);) last = EvalJson::parse(line);
  for (const int ranks : {1, 2}) {
    const EvalJson of_export = evaluated(ranks, eval_of(workplace, "--set run.metrics=f1 --init " + weights));
    EXPECT_EQ(of_export["test_accuracy"], last["test_accuracy"]);
    EXPECT_NEAR(of_export["test_loss"].get<double>(), last["test_loss"].get<double>(), 1e-6);
    EXPECT_EQ(of_export["f1_macro"], last["f1_macro"]);
    EXPECT_EQ(of_export["samples"], 103);
  }
  const EvalJson of_checkpoint =
      evaluated(2, eval_of(workplace, "--set train.epochs=2 --set run.checkpoint_every=1000 --resume auto"));
  EXPECT_EQ(of_checkpoint["test_accuracy"], last["test_accuracy"]);
  EXPECT_EQ(of_checkpoint["test_loss"], last["test_loss"]);
  const ProgramResult line = run_ranks(1, eval_of(workplace, "--init " + weights));
  EXPECT_NE(line.output.find(" % of 103 samples"), std::string::npos) << line.output;
}

TEST(EvalProgram, WantsToBeToldWhat) {
  const Workplace workplace("eval_what");
  for (const std::string flags : {"", "--init x --resume auto"}) {
    const ProgramResult result = run_ranks(2, eval_of(workplace, flags));
    EXPECT_EQ(result.exit_code, exit_code::usage) << result.output;
    EXPECT_NE(result.output.find("what is to be evaluated?"), std::string::npos) << result.output;
  }
  const ProgramResult nothing = run_ranks(2, eval_of(workplace, "--resume auto"));
  EXPECT_EQ(nothing.exit_code, exit_code::usage) << nothing.output;
  EXPECT_NE(nothing.output.find("there is no checkpoint"), std::string::npos) << nothing.output;
  const ProgramResult missing = run_ranks(2, eval_of(workplace, "--init /nowhere.safetensors"));
  EXPECT_EQ(missing.exit_code, exit_code::io) << missing.output;
}

}  // namespace
}  // namespace lockstep
