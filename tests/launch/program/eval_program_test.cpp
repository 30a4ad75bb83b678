// SPDX-License-Identifier: Apache-2.0
//
// `lockstep eval` reports the same values as training.
#include <cmath>
#include <regex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using EvalJson = nlohmann::json;

std::string eval_of(const Workplace& workplace, const std::string& flags) {
  return program("lockstep") + " eval " + workplace.path("config.toml").string() + " " + flags;
}

// The object that --json prints.
EvalJson evaluation_in(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return json_lines_of(result).at(0);
}

EvalJson evaluated(int ranks, const std::string& command) {
  return evaluation_in(run_ranks(ranks, command + " --json"));
}

TEST(EvalProgram, ReportsTheValuesOfTraining) {
  const Workplace workplace("eval");
  const std::string weights = workplace.path("trained.safetensors").string();
  const ProgramResult trained =
      run_ranks(2, workplace.train({"run.metrics=f1", "run.checkpoint_every=1000", "train.epochs=2"},
                                   "--export " + weights));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  EvalJson last = last_metrics_of(workplace.path("run"));
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
  expect_parts(lines_naming(line.output, "103 samples"),
               {fmt::format("{:.2f}", 100 * last["test_accuracy"].get<double>())});
  EXPECT_EQ(lines_naming(line.output, "warning", weights), "") << line.output;
  const ProgramResult other =
      run_shell(eval_of(workplace, "--set 'data.mean=[0.3]' --set 'data.deviation=[0.5]' --init " + weights));
  EXPECT_EQ(other.exit_code, 0) << other.output;
  const std::string warning = lines_naming(other.output, "warning", weights);
  EXPECT_EQ(count(warning, "\n"), 1) << other.output;
  expect_parts(warning, {"data.mean", "0.3", "data.deviation"});
  EXPECT_EQ(count(warning, "model."), 0) << warning;
  expect_failure(run_shell(eval_of(workplace, "--init " + weights + " > /dev/full")), exit_code::io,
                 {"standard output"});
}

// Its place in the epoch does not matter. Three ranks have no batch of the 512 training samples each.
TEST(EvalProgram, EvaluatesACheckpointOnOtherRanks) {
  const Workplace workplace("eval_within_epoch");
  const std::vector<std::string> settings = {"train.batch=200", "train.steps=1", "run.checkpoint_every=1000"};
  ASSERT_EQ(run_ranks(1, workplace.train(settings)).exit_code, 0);
  const EvalJson evaluation =
      evaluated(3, eval_of(workplace,
                           "--set train.batch=200 --set train.steps=1 --set run.checkpoint_every=1000 "
                           "--resume auto"));
  EXPECT_EQ(evaluation["samples"], 103);
}

// Ranks that train apart save the mean of their parameters, which training evaluates, too.
TEST(EvalProgram, EvaluatesACheckpointOfRanksThatTrainApartOnOtherRanks) {
  for (const char* setting : {"train.average_every=4", "train.staleness=1", "comm.topology=ring"}) {
    const Workplace workplace("eval_apart");
    const std::vector<std::string> settings = {"model.name=cnn", "train.steps=11",
                                               "run.checkpoint_minutes=1000", setting};
    const ProgramResult trained = run_ranks(3, workplace.train(settings));
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
    const EvalJson last = last_metrics_of(workplace.path("run"));
    std::string flags = "--resume auto";
    for (const std::string& each : settings) flags += " --set " + each;
    const EvalJson evaluation = evaluated(1, eval_of(workplace, flags));
    EXPECT_EQ(evaluation["samples"], 103) << setting;
    EXPECT_EQ(evaluation["test_accuracy"], last["test_accuracy"]) << setting;
    EXPECT_NEAR(evaluation["test_loss"].get<double>(), last["test_loss"].get<double>(), 1e-5) << setting;
  }
}

// Each kind of tensor in turn. Statistics that are not finite spoil every evaluation, and once went
// unnoticed: the training ended with 0.
TEST(EvalProgram, NamesTheTensorThatIsNotFiniteAndTrainingEnds) {
  const Workplace workplace("eval_poison");
  const auto weights = workplace.path("trained.safetensors"),
             poisoned = workplace.path("poisoned.safetensors");
  const ProgramResult trained =
      run_ranks(1, workplace.train({"model.name=cnn", "train.steps=2"}, "--export " + weights.string()));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  bool negative = false;
  for (const std::string name :
       {"conv1.weight", "bn1.running_mean", "bn1.bias", "bn2.running_var", "fc2.bias", "fc1.weight"}) {
    const bool is_statistic = name.find(".running_") != name.npos;
    const std::string kind = is_statistic ? "statistic" : "parameter";
    negative = !negative;
    write_poisoned(weights, poisoned, name, is_statistic ? std::nanf("") : negative ? -HUGE_VALF : HUGE_VALF);
    const ProgramResult ended = run_shell(workplace.train({"model.name=cnn"}, "--init " + poisoned.string()));
    EXPECT_EQ(ended.exit_code, exit_code::failed) << ended.output;
    expect_parts(lines_naming(ended.output, name), {kind, "step 1", "rank 0"});
    const ProgramResult result =
        run_shell(eval_of(workplace, "--set model.name=cnn --json --init " + poisoned.string()));
    const EvalJson evaluation = evaluation_in(result);
    expect_parts(lines_naming(result.output, name), {kind, "rank 0"});
    EXPECT_TRUE(evaluation["test_loss"].is_null() || !is_statistic) << evaluation;
  }
}

TEST(EvalProgram, NamesTheLayerWhoseActivationsOverflow) {
  const Workplace workplace("eval_overflow");
  const auto weights = workplace.path("trained.safetensors"), large = workplace.path("large.safetensors");
  const ProgramResult trained =
      run_ranks(1, workplace.train({"model.name=cnn", "train.steps=2"}, "--export " + weights.string()));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const auto half_way = workplace.path("half_way.safetensors");
  write_poisoned(weights, half_way, "conv1.weight", 1e30f);
  write_poisoned(half_way, large, "conv2.weight", 1e30f);
  const ProgramResult told = run_shell(eval_of(workplace, "--set model.name=cnn --init " + large.string()));
  EXPECT_EQ(told.exit_code, 0) << told.output;
  EXPECT_TRUE(std::regex_search(told.output, std::regex(R"(rank 0\b.*\bactivations\b.*\bconv2\b)")))
      << told.output;
}

TEST(EvalProgram, RankWithoutTheCheckpointIsNamed) {
  const Workplace workplace("eval_flags");
  const std::string script = workplace.script("[ $OMPI_COMM_WORLD_RANK = 1 ] || from='--resume auto'\nexec " +
                                              eval_of(workplace, "$from"));
  expect_failure(run_ranks(2, script), exit_code::config, {"rank 1", "\"auto\""});
}

TEST(EvalProgram, NeedsExactlyOneNetwork) {
  const Workplace workplace("eval_what");
  const ProgramResult both = run_shell(eval_of(workplace, "--init x --resume auto"));
  EXPECT_EQ(both.exit_code, exit_code::usage) << both.output;
  expect_parts(both.output, {"--init", "--resume"});
  for (const std::string measured : {"", "--set train.batch=auto --set train.precision=auto "}) {
    const ProgramResult nothing = run_shell(eval_of(workplace, measured + "--resume auto"));
    EXPECT_EQ(nothing.exit_code, exit_code::usage) << nothing.output;
    expect_parts(nothing.output, {"--resume auto"});
    EXPECT_EQ(count(nothing.output, "--init"), 0) << nothing.output;
  }
  const ProgramResult missing = run_ranks(2, eval_of(workplace, "--init /nowhere.safetensors"));
  EXPECT_EQ(missing.exit_code, exit_code::io) << missing.output;

  std::filesystem::create_directories(workplace.path("run/checkpoints/step-000000004"));
  const ProgramResult damaged = run_shell(eval_of(workplace, "--set train.batch=auto --resume auto"));
  EXPECT_EQ(damaged.exit_code, exit_code::data) << damaged.output;
  expect_parts(damaged.output, {"step-000000004"});
}

}  // namespace
}  // namespace lockstep
