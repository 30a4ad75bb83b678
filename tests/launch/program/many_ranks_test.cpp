// SPDX-License-Identifier: Apache-2.0
//
// The number of ranks, and detection of what started them.
#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

Json metrics_after(const Workplace& workplace, int ranks, const std::vector<std::string>& settings) {
  const ProgramResult result = run_ranks(ranks, workplace.train(settings));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return last_metrics_of(workplace.path("run"));
}

// Keeps only the first test samples.
void shorten_tests(const Workplace& workplace, char count) {
  const auto cut = [&](const std::string& name, std::size_t header, std::size_t sample) {
    const auto path = workplace.path("data") / name;
    std::filesystem::resize_file(path, header + sample * static_cast<std::size_t>(count));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4);
    file.write("\0\0\0", 3).put(count);
  };
  cut("t10k-images-idx3-ubyte", 16, 12 * 12);
  cut("t10k-labels-idx1-ubyte", 8, 1);
}

// Each test sample counts once, although there are fewer than ranks.
TEST(ManyRanks, SevenEqualOneThatAccumulates) {
  const Workplace workplace("many");
  shorten_tests(workplace, 3);
  const Json many = metrics_after(workplace, 7, {"train.batch=2", "train.steps=5"});
  const Json one = metrics_after(workplace, 1, {"train.batch=2", "train.steps=5", "train.accumulation=7"});
  for (const char* name : {"train_loss", "test_loss"})
    EXPECT_NEAR(many[name], one[name], 1e-5 * one[name].get<double>()) << name;
  EXPECT_EQ(many["test_accuracy"], one["test_accuracy"]);
}

TEST(ManyRanks, MoreThanCoresIsReportedOnce) {
  const Workplace workplace("crowd");
  const ProgramResult result = run_ranks(3, on_one_core() + workplace.train({"train.steps=1"}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(lines_naming(result.output, "3 ranks"), "1 core"), 1) << result.output;
}

// Open MPI's variables that allow root are not set, and there is one core.
const std::string kPlain = "env -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM " + on_one_core();

TEST(StartedRanks, TrainAsRootAndOnOneCore) {
  const Workplace workplace("started");
  const ProgramResult result =
      run_shell("printf 'unread input\\n' | { " + kPlain +
                workplace.train({"train.steps=3"}, "--ranks 3 --export " + workplace.path("x").string()) +
                " 2>&1; code=$?; cat; exit $code; }");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(result.output, "unread input"), 1) << "mpirun read its caller's input: " << result.output;
  EXPECT_EQ(count(result.output, "mpirun -np 3 --bind-to none --oversubscribe "), 1) << result.output;
  const Json record = run_record(workplace.path("run"));
  EXPECT_EQ(record["ranks"], 3);
  EXPECT_EQ(count(record["command"].get<std::string>(), " train --ranks 3 "), 1) << record["command"];
  EXPECT_EQ(record["global_batch"], 3 * 8);
  const ProgramResult answers =
      run_shell(fmt::format("{}{} predict {} {} --ranks=2 2>/dev/null", kPlain, program("lockstep"),
                            workplace.path("x").string(), workplace.path("x").string()));
  EXPECT_EQ(answers.exit_code, exit_code::data) << answers.output;
}

// The printed command is complete: it resumes the training.
TEST(StartedRanks, ResumeByThePrintedCommand) {
  const Workplace workplace("started_again");
  const std::string metrics = workplace.path("run/metrics.jsonl").string();
  const ProgramResult stopped =
      run_shell(fmt::format("{}{} & run=$!\n{}kill -USR1 $run\nwait $run", kPlain,
                            workplace.train({"train.epochs=100000", "data.mean=[0.5]"}, "--ranks 2"),
                            wait_until("[ -s " + metrics + " ]")));
  ASSERT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  const std::size_t ranks = stopped.output.find(" train --ranks 2 ");
  ASSERT_NE(ranks, std::string::npos) << stopped.output;
  const std::size_t at = stopped.output.rfind('\n', ranks) + 1;
  const std::string command = stopped.output.substr(at, stopped.output.find('\n', at) - at);
  const std::string before = text_of(metrics);
  const auto until = std::ranges::count(before, '\n') + 2;
  const ProgramResult again =
      run_shell(fmt::format("{}{} --set train.until_epoch={}", kPlain, command, until));
  EXPECT_EQ(again.exit_code, 0) << again.output;
  const std::string after = text_of(metrics);  // a new training would start a new file
  EXPECT_TRUE(after.starts_with(before)) << again.output;
  EXPECT_EQ(std::ranges::count(after, '\n'), until) << again.output;
}

TEST(StartedRanks, AreRefusedUnderAnotherLauncher) {
  const Workplace workplace("started_twice");
  expect_failure(run_ranks(2, workplace.train({}, "--ranks 1")), exit_code::usage, {"--ranks 1", " 2 ranks"});
  expect_failure(run_shell("env PATH=/nowhere " + workplace.train({}, "--ranks 2")), exit_code::config,
                 {"openmpi-bin", "PATH"});
}

TEST(WrongLauncher, TasksOutsideMpiDoNotTrain) {
  const Workplace workplace("split");
  const std::string train = workplace.train({"train.steps=1"});
  // The variables of the first task of `srun -n 2` without PMI.
  const ProgramResult split = run_shell("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 " + train);
  expect_failure(split, exit_code::config, {" 2 ranks", "srun --mpi=pmix", "unset SLURM_STEP_NUM_TASKS"});
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run")));
  // As with `srun -n 2 mpirun -np 2`, or mpirun in the shell of an interactive step.
  const ProgramResult first = run_ranks(2, "env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 " + train);
  EXPECT_EQ(first.exit_code, 0) << first.output;
  for (const char* remedy : {"srun --mpi=pmix", "unset SLURM_STEP_NUM_TASKS"})
    EXPECT_EQ(count(first.output, remedy), 1) << first.output;
  const ProgramResult second = run_shell("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 " + train);
  expect_failure(second, exit_code::config, {"rank 1: ", "srun --mpi=pmix"});
}

}  // namespace
}  // namespace lockstep
