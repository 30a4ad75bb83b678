// SPDX-License-Identifier: Apache-2.0
//
// Injected faults end the program like real ones, and only where they are configured.
#include <algorithm>
#include <cmath>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/fault_run.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

ProgramResult run_with(const Workplace& workplace, const std::string& fault,
                       std::vector<std::string> settings = {},
                       const std::string& limit = "comm.timeout_seconds=60") {
  settings.insert(settings.begin(), {"train.steps=12", limit, "run.check_every=4"});
  return run_ranks(2, workplace.train(settings, "--inject " + fault));
}

// Expects that one error, which names this step and rank, ends the training.
void expect_not_finite(const ProgramResult& result, int step, int rank) {
  const std::string key = "optimizer.learning_rate";
  expect_failure(result, exit_code::failed, {key});
  expect_parts(lines_naming(result.output, key),
               {fmt::format("step {}", step), fmt::format("rank {}", rank)});
}

// Expects one warning that the step was skipped because of the loss of this rank.
void expect_skipped(const ProgramResult& result, int step, int rank) {
  const std::string lines =
      lines_naming(result.output, "train.max_skipped_steps", fmt::format("step {}", step));
  EXPECT_EQ(count(lines, "\n"), 1) << result.output;
  const std::string warning = lines.substr(std::min(lines.find(']'), lines.size()));  // without "[rank 0"
  expect_parts(warning, {fmt::format("rank {}", rank)});
  EXPECT_EQ(count(warning, fmt::format("rank {}", 1 - rank)), 0) << warning;
}

TEST(Inject, InjectedFaultEndsTheJobLikeARealOne) {
  struct Case {
    std::string fault;
    int code;
    std::vector<std::string> patterns;  // regular expressions, each within a line
  };
  const std::vector<Case> cases = {
      {"kill:rank=1,step=5", 128 + 9, {"signal 9"}},  // a text of mpirun
      {"fail:rank=1,step=5", exit_code::failed, {R"(lockstep: .*\brank 1\b)"}},
      {"oom:rank=1,step=5", exit_code::io, {R"(lockstep: .*\brank 1\b.*std::bad_alloc)"}},
      // A living rank prints its stack.
      {"hang:rank=1,step=5", exit_code::resumable, {R"(\brank 1 \(\w+ \d+)", "lockstep::Trainer::"}},
      {"bitflip:rank=1,step=5",
       exit_code::failed,
       {R"((?=.*\bstep 8\b)(?=.*\brank 1\b).*\bfc1\.)"}},  // its first tensor
      {"wrong-count:rank=1,step=5",
       exit_code::failed,
       {R"(\brank 0\b.*\b1 i32\b.*\bsum\b)", R"(\brank 1\b.*\b2 i32\b.*\bsum\b)"}},
  };
  for (const Case& each : cases) {
    const auto run = [&](const std::string& limit) {
      const Workplace workplace("inject");  // ranks that mpirun kills may hold their folder for a while
      return run_with(workplace, each.fault, {}, limit);
    };
    const bool hangs = each.code == exit_code::resumable;
    const ProgramResult result =
        hangs ? run_until_fault(kInjectedFault, run) : run("comm.timeout_seconds=60");
    EXPECT_EQ(result.exit_code, each.code) << each.fault << ":\n" << result.output;
    EXPECT_EQ(count(lines_naming(result.output, "warning"), each.fault), 1) << result.output;
    for (const std::string& pattern : each.patterns)
      EXPECT_TRUE(std::regex_search(result.output, std::regex(pattern)))
          << pattern << " of " << each.fault << ":\n"
          << result.output;
  }
}

// The time limit ends each job, as if the machine were busy or the job hung.
TEST(RunUntilFault, DoublesTheLimitAndFailsIfNoJobReachesItsFault) {
  int jobs = 0;
  const auto run_with_fault_in = [&](int last) {
    jobs = 0;
    return run_until_fault(kInjectedFault, [&](const std::string& limit) {
      EXPECT_EQ(limit, fmt::format("comm.timeout_seconds={}", 2 << jobs));
      return ProgramResult{exit_code::resumable, ++jobs == last ? kInjectedFault : "a hang"};
    });
  };
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_with_fault_in(6).output, kInjectedFault);
  EXPECT_EQ(count(testing::internal::GetCapturedStdout(), "a hang"), 5);
  testing::internal::CaptureStdout();
  EXPECT_NONFATAL_FAILURE(run_with_fault_in(7), "a hang");
  testing::internal::GetCapturedStdout();
  EXPECT_EQ(jobs, 6);
}

// The result of a mismatched collective reaches neither the parameters nor a checkpoint.
TEST(Inject, NoStepFollowsAMismatchedCollective) {
  const Workplace workplace("inject_guard");
  const ProgramResult result =
      run_with(workplace, "wrong-op:rank=1,step=5", {"run.checkpoint_every=1", "run.keep=9"});
  EXPECT_EQ(result.exit_code, exit_code::failed) << result.output;
  for (const char* call : {R"(\brank 0\b.*\b1 i32\b.*\bsum\b)", R"(\brank 1\b.*\b1 i32\b.*\bmax\b)"})
    EXPECT_TRUE(std::regex_search(result.output, std::regex(call))) << call << ":\n" << result.output;
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000003/manifest.json")))
      << result.output;
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000005"))) << result.output;
}

// The gradients of step 5 would be applied in step 6.
TEST(Inject, LateGradientsThatAreNotFiniteReachNoCheckpoint) {
  const Workplace workplace("inject_late");
  const std::vector<std::string> settings = {"train.steps=5", "train.epochs=4", "train.staleness=1",
                                             "run.checkpoint_every=1", "run.keep=9"};
  const ProgramResult failed = run_ranks(2, workplace.train(settings, "--inject nan:rank=1,step=5"));
  EXPECT_EQ(failed.exit_code, exit_code::failed) << failed.output;
  EXPECT_GE(count(lines_naming(failed.output, "step 5"), "finite"), 1) << failed.output;
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000004"))) << failed.output;
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000005"))) << failed.output;
  const ProgramResult resumed = run_ranks(2, workplace.train(settings, "--resume auto"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
}

// If ranks differ, a resumed run would load one checkpoint on all of them and hide the difference.
TEST(Inject, BitFlipBetweenComparisonsReachesNoCheckpoint) {
  const Workplace workplace("inject_flip");
  const std::vector<std::string> settings = {"train.steps=40",         "train.epochs=4",
                                             "run.checkpoint_every=6", "run.check_every=1000",
                                             "model.name=cnn",         "kernels.choose=direct"};
  const std::string whole = digest_of(workplace, 3, settings);
  std::filesystem::remove_all(workplace.path("run"));
  const ProgramResult flipped =
      run_ranks(3, workplace.train(settings, "--resume auto --inject bitflip:rank=0,step=8"));
  EXPECT_EQ(flipped.exit_code, exit_code::failed) << flipped.output;
  const std::string error = lines_naming(flipped.output, "step 12");
  EXPECT_EQ(count(error, "2 ranks"), 1) << flipped.output;
  expect_parts(error, {"rank 0"});
  const std::string digest = workplace.path("resumed").string();
  const ProgramResult resumed = run_ranks(3, workplace.train(settings, "--resume auto --digest " + digest));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_GE(count(resumed.output, "checkpoints/step-000000006"), 1) << resumed.output;
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/checkpoints.1"))) << resumed.output;
  EXPECT_EQ(text_of(digest), whole);
}

TEST(Inject, CorrectRanksPassEveryComparison) {
  const Workplace workplace("inject_clean");
  const ProgramResult result = run_ranks(
      3, workplace.train({"train.epochs=10", "train.steps=200", "run.check_every=1", "comm.check=step"}));
  EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
  EXPECT_EQ(count(result.output, "error"), 0) << result.output;
}

// Nothing fails, but all ranks run at the speed of the slowest. advice_test.cpp proves the rule. Here the
// delay is longer than any that other programs cause.
TEST(Inject, SlowRankIsNamedInTheReport) {
  const Workplace workplace("inject_slow");
  const ProgramResult result = run_with(workplace, "slow:rank=1,step=2,ms=500", {"train.steps=4"});
  EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
  const nlohmann::json communication = last_metrics_of(workplace.path("run")).at("communication");
  EXPECT_EQ(communication.at("late_rank"), 1) << communication;
  ASSERT_TRUE(communication.at("advice").is_object()) << communication;
  EXPECT_EQ(communication["advice"].at("cause"), "late_rank") << communication;
  EXPECT_GE(count(result.output, "rank 1"), 2) << "the epoch's line and the advice: " << result.output;
}

// Steps take 20 ms. A rank with 32 ms is reported; with equal delays no rank is.
TEST(Inject, OnlyTheSlowRankIsNamedOnceWithin20Steps) {
  NEEDS_QUIET_CORES();
  const Workplace workplace("inject_slower");
  std::string alike_flags;
  for (int rank = 0; rank < 4; ++rank)
    alike_flags += fmt::format(" --inject slow:rank={},step=1,ms=20", rank);
  const ProgramResult alike =
      run_ranks(4, workplace.train({"train.epochs=20", "train.steps=200"}, alike_flags));
  EXPECT_EQ(alike.exit_code, exit_code::done) << alike.output;
  EXPECT_EQ(count(text_of(workplace.path("run/metrics.jsonl")), "\"stragglers\""), 0) << alike.output;
  constexpr int kBegin = 20;
  const ProgramResult slow =
      run_ranks(4, workplace.train({"train.epochs=20", "train.steps=80"},
                                   alike_flags + fmt::format(" --inject slow:rank=2,step={},ms=12", kBegin)));
  EXPECT_EQ(slow.exit_code, exit_code::done) << slow.output;
  const std::string warnings = lines_naming(slow.output, "warning [rank 0]", "rank 2");
  EXPECT_EQ(count(warnings, "\n"), 1) << slow.output;
  const std::string metrics = text_of(workplace.path("run/metrics.jsonl"));
  ASSERT_EQ(count(metrics, "\"stragglers\":[{\"rank\":2,"), 1);
  const std::string key = "\"found_step\":";
  ASSERT_EQ(count(metrics, key), 1);
  EXPECT_LE(std::stol(metrics.substr(metrics.find(key) + key.size())), kBegin + 20);
}

// With a loss scale one such step is skipped without leaving a trace in the state.
TEST(Inject, SingleNonFiniteGradientIsSkippedInHalfPrecision) {
  const Workplace workplace("inject_nan");
  const ProgramResult result =
      run_with(workplace, "nan:rank=1,step=5", {"train.precision=fp16", "train.loss_scale=128"});
  EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
  EXPECT_EQ(count(text_of(workplace.path("run/metrics.jsonl")), "\"skipped_steps\":1,"), 1) << result.output;
  EXPECT_EQ(count(lines_naming(result.output, "step 5"), "128"), 1) << result.output;
}

// The gradients of rank 0, which saves. Its checkpoint is sound, and the training resumes from it.
TEST(Inject, NonFiniteGradientsLeaveAResumableState) {
  const Workplace workplace("inject_last_good");
  const std::vector<std::string> settings = {"train.steps=12"};
  const std::string whole = digest_of(workplace, 2, settings);
  const std::string digest = workplace.path("resumed").string();
  for (const int ranks : {1, 2}) {
    std::filesystem::remove_all(workplace.path("run"));
    const ProgramResult failed = run_ranks(ranks, workplace.train(settings, "--inject nan:rank=0,step=5"));
    expect_not_finite(failed, 5, 0);
    expect_parts(lines_naming(failed.output, "last_good.safetensors"),
                 {"step 5", "parameter", ".bias", "step 4", "--resume auto"});
    for (const auto& [name, values] : tensors_of(workplace.path("run/last_good.safetensors")))
      EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) << name;
    const ProgramResult resumed =
        run_ranks(ranks, workplace.train(settings, "--resume auto --digest " + digest));
    EXPECT_EQ(resumed.exit_code, exit_code::done) << resumed.output;
    EXPECT_GE(count(resumed.output, "checkpoints/step-000000004"), 1) << resumed.output;
    std::int64_t steps = 0;
    for (const nlohmann::json& line : json_lines_of(workplace.path("run/steps.jsonl")))
      steps += line.at("steps").get<std::int64_t>();
    EXPECT_EQ(steps, 12) << "each step is in one line of steps.jsonl";
  }
  EXPECT_EQ(text_of(digest), whole);
}

TEST(Inject, NonFiniteGradientsAreSkippedUpToTheLimit) {
  const Workplace workplace("inject_skipped");
  for (const char* exchange : {"comm.exchange=dense", "comm.exchange=sharded"}) {
    SCOPED_TRACE(exchange);
    const std::vector<std::string> settings = {"train.max_skipped_steps=1", exchange};
    const std::string once = "nan:rank=1,step=5 --inject nan:rank=0,step=7";
    const ProgramResult skipped = run_with(workplace, once, settings);
    EXPECT_EQ(skipped.exit_code, exit_code::done) << skipped.output;
    expect_skipped(skipped, 5, 1);
    expect_skipped(skipped, 7, 0);
    EXPECT_EQ(count(text_of(workplace.path("run/metrics.jsonl")), "\"skipped_steps\":2"), 1);
    const ProgramResult ended = run_with(workplace, "nan:rank=1,step=5 --inject nan:rank=1,step=6", settings);
    expect_not_finite(ended, 6, 1);
  }
}

// While ranks train separately, only the rank with such gradients skips. Too many skips end the job at the
// next average.
TEST(Inject, LocalSgdRanksSkipAloneAndEndTogether) {
  const Workplace workplace("inject_skipped_apart");
  const std::vector<std::string> settings = {"train.max_skipped_steps=1", "train.average_every=4"};
  const ProgramResult skipped = run_with(workplace, "nan:rank=1,step=5 --inject nan:rank=1,step=7", settings);
  EXPECT_EQ(skipped.exit_code, exit_code::done) << skipped.output;
  const std::string warnings = lines_naming(skipped.output, "warning [rank 1]");
  for (const char* step : {"step 5", "step 7"}) EXPECT_EQ(count(warnings, step), 1) << skipped.output;
  EXPECT_EQ(count(text_of(workplace.path("run/metrics.jsonl")), "\"skipped_steps\":2"), 1);
  const ProgramResult ended = run_with(workplace, "nan:rank=1,step=5 --inject nan:rank=1,step=6", settings);
  expect_not_finite(ended, 8, 1);
}

// Until the next average only the failed rank knows. A checkpoint would hold parameters without its steps.
TEST(Inject, NoCheckpointFollowsAFailureOfARankThatTrainsApart) {
  const Workplace workplace("inject_apart_saved");
  const std::vector<std::string> settings = {"train.average_every=4", "run.checkpoint_every=2", "run.keep=9"};
  const ProgramResult ended = run_with(workplace, "nan:rank=1,step=5", settings);
  expect_not_finite(ended, 6, 1);
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000004/manifest.json")));
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000006"))) << ended.output;
}

// The error of the first step names a checkpoint that exists.
TEST(Inject, StateBeforeTheFirstStepIsSavedIfTheErrorNamesIt) {
  const Workplace workplace("inject_first");
  const ProgramResult ended = run_with(workplace, "nan:rank=0,step=1", {"run.checkpoint_every=100"});
  expect_not_finite(ended, 1, 0);
  EXPECT_EQ(count(ended.output, "--resume auto"), 1) << ended.output;
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000000/manifest.json")))
      << ended.output;
}

TEST(Inject, UnwritableLastGoodStateHidesNeitherTheOriginNorTheCheckpoint) {
  const Workplace workplace("inject_unwritable");
  std::filesystem::create_directories(workplace.path("run/last_good.safetensors/in_the_way"));
  const ProgramResult ended = run_with(workplace, "nan:rank=0,step=5");
  expect_not_finite(ended, 5, 0);
  expect_parts(ended.output, {"last_good.safetensors"});
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000004/manifest.json")))
      << ended.output;
}

// With gradients that are applied one step late: step 5 applies those of step 4, and may leave no NaN in the
// momentum.
TEST(Inject, DelayedNonFiniteGradientsAreSkippedOrEndTheJob) {
  const Workplace workplace("inject_skipped_late");
  const std::vector<std::string> settings = {"train.max_skipped_steps=1", "train.staleness=1"};
  const ProgramResult ended = run_with(workplace, "nan:rank=1,step=5 --inject nan:rank=1,step=6", settings);
  expect_skipped(ended, 5, 1);
  expect_not_finite(ended, 6, 1);
  const ProgramResult skipped = run_ranks(
      1, workplace.train({"train.steps=12", settings[0], settings[1]}, "--inject nan:rank=0,step=5"));
  EXPECT_EQ(skipped.exit_code, exit_code::done) << skipped.output;
  expect_skipped(skipped, 5, 0);
}

TEST(Inject, FullDiskKeepsTheEarlierCheckpoint) {
  const Workplace workplace("inject_disk");
  const ProgramResult result =
      run_with(workplace, "disk-full:rank=0,step=8", {"run.checkpoint_every=3", "run.keep=9"});
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
  EXPECT_GE(count(lines_naming(result.output, "step 9"), "File too large"), 1) << result.output;
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000003/manifest.json")));
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/checkpoints/step-000000009")));
}

// The step of the newest complete checkpoint in the run's folder; 0 without one.
int newest_checkpoint(const Workplace& workplace) {
  int newest = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(workplace.path("run/checkpoints"), none)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".partial")
      newest = std::max(newest, std::stoi(name.substr(name.find('-') + 1)));
  }
  return newest;
}

// The number in the last match of the pattern; 0 without a match.
int last_number(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  int number = 0;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
    number = std::stoi((*match)[1].str());
  return number;
}

// The checkpoint before the one that is being saved stays, even if only one is kept. tests/faults.sh repeats
// this fifty times.
TEST(Inject, RankKilledWhileSavingLosesNoCheckpoint) {
  const Workplace workplace("inject_saving");
  const std::vector<std::string> settings = {"train.steps=40", "run.checkpoint_every=5", "model.name=cnn",
                                             "kernels.choose=direct"};
  const std::string whole = digest_of(workplace, 2, settings);
  std::filesystem::remove_all(workplace.path("run"));
  const std::string digest = workplace.path("resumed").string();
  struct Start {
    std::string flags;
    int code;
    int least;  // step of a checkpoint that is complete before the fault
  };
  const Start starts[] = {{"--inject kill-saving:rank=0,step=12,ms=0", 128 + 9, 5},
                          {"--set run.keep=1 --inject kill-saving:rank=1,step=22,ms=0.5", 128 + 9, 15},
                          {"--digest " + digest, exit_code::done, 32}};
  int saved = 0;
  for (const Start& start : starts) {
    const ProgramResult result = run_ranks(2, workplace.train(settings, "--resume auto " + start.flags));
    EXPECT_EQ(result.exit_code, start.code) << result.output;
    EXPECT_GE(last_number(result.output, R"(\btraining resumes after step (\d+))"), saved) << result.output;
    saved = newest_checkpoint(workplace);
    EXPECT_GE(saved, start.least) << result.output;
    EXPECT_GE(saved, last_number(result.output, R"(\bcheckpoint .*/step-(\d+): .*\bwritten\b)"))
        << result.output;
  }
  EXPECT_EQ(text_of(digest), whole);
}

// command_line_test.cpp has the other wrong faults.
TEST(Inject, RefusesFaultsThatThisJobCannotHave) {
  const Workplace workplace("inject_refused");
  for (const auto& [fault, pattern] :
       {std::pair{"kill:rank=2", R"(kill:rank=2.*\b1 rank\b)"},
        std::pair{"link-down:rank=0", R"(--inject link-down.*network namespace)"}}) {
    const ProgramResult result =
        run_shell(workplace.train({"train.steps=12"}, std::string("--inject ") + fault));
    EXPECT_EQ(result.exit_code, exit_code::usage) << result.output;
    EXPECT_TRUE(std::regex_search(result.output, std::regex(pattern))) << pattern << ":\n" << result.output;
    const bool begins = std::string(fault).starts_with("link-down");
    EXPECT_EQ(std::filesystem::exists(workplace.path("run/metrics.jsonl")), begins) << result.output;
  }
}

}  // namespace
}  // namespace lockstep
