// SPDX-License-Identifier: Apache-2.0
//
// The Slurm template, and ranks started by srun, under a private Slurm of the test: tests/slurm.sh.

#include <iterator>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

constexpr int kNoSlurm = 77;

// Skips the test and prints the reason.
#define REQUIRE_SLURM(result) \
  if ((result).exit_code == kNoSlurm) GTEST_SKIP() << (result).output

ProgramResult run_slurm(const std::string& command) {
  return run_shell(fmt::format("'{}/tests/slurm.sh' 2 {}", source_folder(), command));
}

// Submits a job with the template on the only node. `arguments` follow "lockstep train".
std::string submit(const Workplace& workplace, const std::string& arguments) {
  return fmt::format(
      "job=$(LOCKSTEP={} sbatch --parsable --nodes=1 --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 "
      "--output={} '{}/launch/slurm/train.sbatch' {})\n",
      program("lockstep"), workplace.path("log").string(), source_folder(), arguments);
}

std::string arguments_of(const std::string& train) { return train.substr(train.find(" train ") + 7); }

// Shell lines that wait for the condition for at most five minutes.
std::string wait_for(const std::string& condition) {
  return fmt::format(
      "waits=0\nuntil {0}; do\n  waits=$((waits + 1))\n"
      "  [ $waits -lt 6000 ] || {{ echo \"timed out waiting for {0}\"; cat log; squeue; exit 1; }}\n  sleep "
      "0.05\ndone\n",
      condition);
}

// The number of epochs that the run in the current folder has trained, as a shell expression.
constexpr const char* kTrainedEpochs = "$(cat run/metrics.jsonl 2>/dev/null | wc -l)";
// A command that prints the number of starts that train.sbatch has logged.
constexpr const char* kCountStarts = "grep -c 'start [0-9]' log";

std::string wait_for_end() { return wait_for("[ -z \"$(squeue --noheader --jobs=$job)\" ]"); }

TEST(Slurm, SrunGivesTheDigestOfMpirun) {
  const Workplace workplace("srun");
  const std::vector<std::string> settings = {"train.steps=8"};
  const auto file = workplace.path("of_srun");
  const ProgramResult result =
      run_slurm("srun --mpi=pmix -n 2 " + workplace.train(settings, "--digest " + file.string()));
  REQUIRE_SLURM(result);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(text_of(file), digest_of(workplace, 2, settings));
}

// Interruptions of long jobs: the time limit ends, a rank dies, a job of higher priority preempts. Each step
// sleeps for 5 ms, so that the job is also long on a fast machine.
TEST(Slurm, JobInterruptedThreeTimesKeepsItsDigest) {
  const Workplace workplace("requeue");
  constexpr int kEpochs = 100;
  const std::vector<std::string> settings = {fmt::format("train.epochs={}", kEpochs),
                                             "run.checkpoint_every=100", "run.keep=2", "run.grace_seconds=5"};
  const auto file = workplace.path("of_slurm");
  // Waits until this number of starts is logged and one more epoch is trained.
  const auto goes_on = [](int start) {
    return wait_for(fmt::format("[ $({}) = {} ]", kCountStarts, start)) + "seen=" + kTrainedEpochs + "\n" +
           wait_for(fmt::format("[ {} -gt $seen ]", kTrainedEpochs));
  };
  const std::string lines =
      "cd " + workplace.path("").string() + "\n" +
      submit(workplace, arguments_of(workplace.train(
                            settings, "--inject slow:rank=0,step=1,ms=5 --digest " + file.string()))) +
      wait_for("[ -e log ]") + goes_on(1) + "scancel --signal=USR1 --batch $job\n" + goes_on(2) +
      "pkill -KILL --newest --full ^" + program("lockstep") + "\n" + goes_on(3) +
      "sbatch --quiet --partition=high --nodes=1 --ntasks=2 --output=/dev/null --wrap 'sleep 0.1'\n" +
      goes_on(4) + wait_for_end() + "cat log\n";
  const ProgramResult result = run_slurm(workplace.script(lines));
  REQUIRE_SLURM(result);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  // Each of the four starts adds a file to the run's folder; a start that did not resume would rename it.
  const std::filesystem::directory_iterator starts(workplace.path("run/tensorboard"));
  EXPECT_EQ(std::distance(begin(starts), end(starts)), 4) << result.output;
  int epoch = 0;
  for (const nlohmann::json& line : metrics_of(workplace.path("run")))
    EXPECT_EQ(line.at("epoch"), ++epoch) << line;
  EXPECT_EQ(epoch, kEpochs);
  EXPECT_EQ(text_of(file), digest_of(workplace, 2, {settings[0]}));
}

// A restart would not help, or the user has cancelled the job.
TEST(Slurm, FailedOrCancelledJobIsNotRestarted) {
  const Workplace workplace("cancel");
  const std::string state = "scontrol show job $job | grep -o 'JobState=[A-Z]*\\|ExitCode=[0-9]*'\n";
  const std::string lines = "cd " + workplace.path("").string() + "\n" +
                            submit(workplace, arguments_of(workplace.train({"train.batch=1000000"}))) +
                            wait_for_end() + state +
                            submit(workplace, arguments_of(workplace.train({"train.epochs=100000"}))) +
                            wait_for(fmt::format("[ {} -ge 2 ]", kTrainedEpochs)) + "scancel $job\n" +
                            wait_for_end() + state + kCountStarts + "\n";
  const ProgramResult result = run_slurm(workplace.script(lines));
  REQUIRE_SLURM(result);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "JobState=FAILED\nExitCode=78\nJobState=CANCELLED\nExitCode=75\n2\n");
}

}  // namespace
}  // namespace lockstep
