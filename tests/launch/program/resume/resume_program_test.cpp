// SPDX-License-Identifier: Apache-2.0
//
// The program saves, is stopped or killed, and resumes. It ends with the bits and the metrics.jsonl of an
// uninterrupted run.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Settings = std::vector<std::string>;

std::string command_of(int ranks, const Workplace& workplace, const Settings& settings,
                       const std::string& flags) {
  return on_ranks(ranks, workplace.train(settings, flags));
}

// Pixels of a side: their number changes nothing that an interruption may break.
constexpr int kSide = 8;

// All features that an interruption may break: a schedule that changes the rate, per-rank statistics,
// augmentation, dropout, and a loss scale that overflows at first and doubles often.
Settings demanding(int ranks) {
  return {"model.name=cnn",
          "model.dropout=0.2",
          "kernels.choose=direct",
          "train.precision=fp16",
          "train.loss_scale=1e9",
          "train.loss_scale_interval=20",
          "train.accumulation=2",
          "train.epochs=4",
          "train.batch=4",
          "data.crop_padding=1",
          "data.horizontal_flip=true",
          "schedule.name=cosine",
          fmt::format("comm.compress_within_node={}", ranks > 1),
          fmt::format("comm.codec={}", ranks > 1 ? "sign" : "none")};
}

// Starts a run, sends SIGUSR1 to its launcher while rank 0 is held in a phase, and returns how the run ended.
// Rank 0 continues once a rank has reported the signal. Other ranks wait for it, so the training cannot end
// before the signal.
ProgramResult preempted(int ranks, const Workplace& workplace, const Settings& settings,
                        const std::string& flags, const char* phase = "checkpoint") {
  const std::string held = workplace.path("held").string(), log = workplace.path("log").string();
  return run_shell(
      fmt::format("LOCKSTEP_HOLD={5}:0:{0} {1} > {2} 2>&1 & run=$!\n{3}kill -USR1 $run\n{4}rm {0}\n"
                  "wait $run\ncode=$?\ncat {2}\nexit $code",
                  held, command_of(ranks, workplace, settings, flags), log, wait_until("[ -e " + held + " ]"),
                  wait_until("grep -q SIGUSR1 " + log), phase));
}

// Compares all metrics except times.
void expect_same_metrics(const Workplace& workplace, const std::vector<nlohmann::json>& expected) {
  const auto lines = metrics_of(workplace.path("run"));
  ASSERT_EQ(lines.size(), expected.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const char* name : {"epoch", "steps", "train_loss", "test_loss", "test_accuracy", "learning_rate",
                             "skipped_steps", "loss_scale"})
      EXPECT_EQ(lines[i][name], expected[i][name]) << name << " of line " << i;
  }
}

struct Undisturbed {
  std::string digest;
  std::vector<nlohmann::json> metrics;
};

Undisturbed undisturbed(int ranks, const Workplace& workplace, Settings settings) {
  settings.push_back("run.dir=" + workplace.path("whole").string());
  Undisturbed run{.digest = digest_of(workplace, ranks, settings),
                  .metrics = metrics_of(workplace.path("whole"))};
  EXPECT_FALSE(std::filesystem::exists(workplace.path("whole/checkpoints"))) << "no checkpoint was requested";
  return run;
}

void expect_resumed(int ranks, const Workplace& workplace, const Settings& settings,
                    const Undisturbed& expected, const std::string& from = "auto") {
  const std::string digest = workplace.path("resumed").string();
  const std::vector<nlohmann::json> before = metrics_of(workplace.path("run"));
  ASSERT_FALSE(before.empty());
  const ProgramResult result =
      run_shell(command_of(ranks, workplace, settings, fmt::format("--resume {} --digest {}", from, digest)));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  // The first epoch's line has times, which would differ if the epoch had been trained again.
  EXPECT_EQ(metrics_of(workplace.path("run")).at(0), before.at(0)) << result.output;
  EXPECT_EQ(text_of(digest), expected.digest) << result.output;
  expect_same_metrics(workplace, expected.metrics);
}

// The checkpoints of the run, the oldest first.
std::vector<std::string> saved_checkpoints(const Workplace& workplace) {
  std::vector<std::string> folders;
  if (!std::filesystem::exists(workplace.path("run/checkpoints"))) return folders;
  for (const auto& entry : std::filesystem::directory_iterator(workplace.path("run/checkpoints")))
    folders.push_back(entry.path().string());
  std::ranges::sort(folders);
  return folders;
}

// Expects exit code 75 and one line, not one per rank, that names the signal and the last checkpoint. The
// output also contains the flag that resumes.
void expect_stopped(const Workplace& workplace, const ProgramResult& stopped, const std::string& signal) {
  ASSERT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  const std::vector<std::string> saved = saved_checkpoints(workplace);
  ASSERT_FALSE(saved.empty()) << stopped.output;
  EXPECT_EQ(count(lines_naming(stopped.output, signal, saved.back()), "\n"), 1) << stopped.output;
  EXPECT_GE(count(stopped.output, "--resume auto"), 1) << stopped.output;
}

class Resume : public testing::TestWithParam<int> {};

// A killed process loses the steps after the last checkpoint and trains them again.
TEST_P(Resume, ContinuesBitForBitAfterAKill) {
  const int ranks = GetParam();
  const Workplace workplace(fmt::format("killed_{}", ranks), "lockstep", kSide);
  Settings settings = demanding(ranks);
  const Undisturbed whole = undisturbed(ranks, workplace, settings);
  constexpr std::int64_t kEvery = 23;
  settings.push_back(fmt::format("run.checkpoint_every={}", kEvery));
  // After the start of the first checkpoint that is due in the second epoch: it waits until that of the first
  // epoch's end, the best so far, is written.
  const std::int64_t epoch = whole.metrics.at(0)["steps"].get<std::int64_t>();
  const std::int64_t step = (epoch / kEvery + 1) * kEvery + 5;
  const ProgramResult killed = run_shell(
      command_of(ranks, workplace, settings, fmt::format("--inject kill:rank={},step={}", ranks - 1, step)));
  ASSERT_NE(killed.exit_code, 0) << killed.output;
  expect_resumed(ranks, workplace, settings, whole);
  // The run has ended: another resume trains nothing and reports the same.
  expect_resumed(ranks, workplace, settings, whole);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Resume, testing::Values(1, 2, 4));

// For every stop and every kind of tail: the learning rate follows the schedule of all epochs.
TEST(Continued, PartsOfSomeEpochsEqualOneTraining) {
  for (const char* tail : {"data.tail=drop", "data.tail=carry"}) {
    const Workplace workplace("in_parts");
    const Settings settings = {"schedule.name=cosine", "train.epochs=5", "train.batch=30", tail};
    const Undisturbed whole = undisturbed(1, workplace, settings);
    ASSERT_EQ(whole.metrics.size(), 5u);
    for (const int epochs : {1, 3}) {
      Settings part = settings;
      part.push_back(fmt::format("train.until_epoch={}", epochs));
      part.push_back("run.checkpoint_every=1000");
      const ProgramResult result = run_shell(command_of(1, workplace, part, "--resume auto"));
      ASSERT_EQ(result.exit_code, 0) << result.output;
      EXPECT_EQ(metrics_of(workplace.path("run")).size(), static_cast<std::size_t>(epochs));
    }
    expect_resumed(1, workplace, settings, whole);
  }
}

// The signal arrives in an evaluation, and while a checkpoint is written.
TEST(Preemption, SavesEndsWith75AndResumesBitForBit) {
  const Workplace workplace("preempted", "lockstep", kSide);
  Settings settings = demanding(2);
  const Undisturbed whole = undisturbed(2, workplace, settings);
  settings.push_back("run.checkpoint_every=17");
  for (const char* phase : {"evaluation", "checkpoint"}) {
    const ProgramResult stopped = preempted(2, workplace, settings, "--resume auto", phase);
    ASSERT_NO_FATAL_FAILURE(expect_stopped(workplace, stopped, "SIGUSR1"));
    EXPECT_EQ(count(stopped.output, "mpirun -np 2 "), 1) << stopped.output;
  }
  expect_resumed(2, workplace, settings, whole);
}

// Without a launcher and without periodic checkpoints: a run that receives a signal saves one.
TEST(Preemption, AnySignalStopsASingleProcess) {
  for (const char* signal : {"TERM", "INT", "HUP"}) {
    const Workplace workplace(fmt::format("signal_{}", signal));
    const Settings settings = {"model.name=cnn", "train.epochs=100000", "run.event_command=true"};
    // Shells start background jobs with SIGINT ignored, and programs inherit that.
    const std::string metrics = workplace.path("run/metrics.jsonl").string();
    const ProgramResult stopped = run_shell(
        fmt::format("env --default-signal=INT {} & run=$!\n{}kill -{} $run\nwait $run",
                    workplace.train(settings), wait_until(fmt::format("[ -s {} ]", metrics)), signal));
    expect_stopped(workplace, stopped, fmt::format("SIG{}", signal));
    EXPECT_EQ(count(stopped.output, "redacted"), 0) << "the command would run no event command";
    EXPECT_EQ(count(stopped.output, "LOCKSTEP_EVENT_COMMAND"), 1) << stopped.output;
  }
}

// A signal can arrive at any instruction, also within matrix products, whose kernels have their stack in the
// heap.
TEST(Preemption, HundredsOfSignalsChangeNoBit) {
  const Workplace workplace("signals");
  const Settings settings = {"train.epochs=10"};
  const Undisturbed whole = undisturbed(1, workplace, settings);
  const std::string digest = workplace.path("signalled").string(), log = workplace.path("log").string();
  const std::filesystem::path held = workplace.path("held");
  const pid_t run = start_shell(fmt::format("exec env LOCKSTEP_HOLD=step:0:{} {} > {} 2>&1", held.string(),
                                            workplace.train(settings, "--digest " + digest), log));
  while (!std::filesystem::exists(held) && is_running(run))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  // The first ten signals arrive before the training may continue after its first step.
  for (int sent = 0; sent < 400 && is_running(run); ++sent) {
    if (sent == 10) std::filesystem::remove(held);
    kill(run, SIGUSR2);
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  int status = 0;
  waitpid(run, &status, 0);
  EXPECT_EQ(status, 0) << text_of(log);
  EXPECT_FALSE(saved_checkpoints(workplace).empty()) << text_of(log);
  EXPECT_EQ(text_of(digest), whole.digest);
}

// Rank 0 takes ten local steps while rank 1 is held after one.
TEST(LocalSgdProgram, RanksDoNotWaitForEachOtherBetweenAverages) {
  const Workplace workplace("local_steps");
  const std::string held = workplace.path("held").string(), log = workplace.path("log").string(),
                    steps = workplace.path("run/steps.jsonl").string();
  const Settings settings = {"model.name=cnn", "kernels.choose=direct",    "train.average_every=30",
                             "train.steps=30", "run.checkpoint_every=100", "train.epochs=2",
                             "run.log_every=1"};
  const ProgramResult result = run_shell(
      fmt::format("LOCKSTEP_HOLD=step:1:{0} {1} > {2} 2>&1 & run=$!\n{3}{4}rm {0}\nwait $run\ncode=$?\ncat "
                  "{2}\nexit $code",
                  held, command_of(2, workplace, settings, ""), log, wait_until("[ -e " + held + " ]"),
                  wait_until("[ $(cat " + steps + " | wc -l) -ge 10 ]")));
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

// The signal arrives after the first step, and the first average would be after 1000.
TEST(LocalSgdProgram, OneRankStopsBetweenAverages) {
  const Workplace workplace("local_stop");
  const Settings settings = {"model.name=cnn", "train.average_every=1000", "train.epochs=100000"};
  const ProgramResult stopped = preempted(1, workplace, settings, "", "step");
  ASSERT_NO_FATAL_FAILURE(expect_stopped(workplace, stopped, "SIGUSR1"));
  EXPECT_TRUE(saved_checkpoints(workplace).back().ends_with("step-000000001")) << stopped.output;
}

// Both ranks take 1 s for each step after the checkpoint begins. They end once it is complete, before the
// next checkpoint and before the first average. An evaluation would also save one.
TEST(LocalSgdProgram, ACheckpointIsCompletedBetweenAverages) {
  const Workplace workplace("local_checkpoint");
  const Settings settings = {"model.name=cnn",       "train.average_every=1000", "train.epochs=10",
                             "run.evaluate_every=0", "run.checkpoint_every=100", "run.grace_seconds=0.1"};
  const std::string slow = "--inject slow:rank=0,step=101,ms=1000 --inject slow:rank=1,step=101,ms=1000";
  const std::string saves =
      fmt::format("ls {} 2>/dev/null | grep -q '[0-9]$'", workplace.path("run/checkpoints").string());
  const ProgramResult stopped =
      run_shell(fmt::format("{} & run=$!\n{}kill -USR1 $run\nwait $run",
                            command_of(2, workplace, settings, slow), wait_until(saves)));
  EXPECT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  const std::vector<std::string> saved = saved_checkpoints(workplace);
  ASSERT_EQ(saved.size(), 1u) << stopped.output;
  EXPECT_TRUE(saved.front().ends_with("step-000000100")) << saved.front();
}

}  // namespace
}  // namespace lockstep
