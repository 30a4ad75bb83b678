// SPDX-License-Identifier: Apache-2.0
//
// The program on a ring of ranks: the number of steps by rank, the final average on all ranks, and a resumed
// training.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/matches_in.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using RingSettings = std::vector<std::string>;

RingSettings on_a_ring(RingSettings more) {
  more.insert(more.begin(), {"model.name=cnn", "comm.topology=ring"});
  return more;
}

// The steps of all ranks together in each epoch of metrics.jsonl.
std::vector<int> sums_of_steps(const Workplace& workplace) {
  std::vector<int> sums;
  for (const nlohmann::json& line : metrics_of(workplace.path("run"))) {
    const auto steps = line.at("steps_by_rank").get<std::vector<int>>();
    sums.push_back(std::accumulate(steps.begin(), steps.end(), 0));
  }
  return sums;
}

// The step of the newest checkpoint.
std::int64_t saved_steps(const Workplace& workplace) {
  std::int64_t steps = 0;
  for (const auto& entry : std::filesystem::directory_iterator(workplace.path("run/checkpoints"))) {
    const auto manifest = nlohmann::json::parse(text_of(entry.path() / "manifest.json"));
    steps = std::max(steps, manifest.at("steps").get<std::int64_t>());
  }
  return steps;
}

// The program fails if its ranks have different state.
TEST(Ring, RanksShareTheStepsAndEndWithOneAverage) {
  const Workplace workplace("ring");
  const auto file = workplace.path("digest");
  const ProgramResult result = run_ranks(
      3,
      workplace.train(on_a_ring({"train.epochs=2", "train.steps=11", "run.check_every=1", "run.log_every=1"}),
                      "--digest " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  int all = 0, of_rank_0 = 0, in_lines = 0;
  for (const int sum : sums_of_steps(workplace)) {
    EXPECT_EQ(sum % 3, 0) << result.output;
    all += sum;
  }
  EXPECT_EQ(all, 3 * 11) << result.output;
  EXPECT_GE(matches_in(text_of(file), R"(\b[0-9a-f]{32}\b)"), 1) << text_of(file);
  for (const nlohmann::json& line : metrics_of(workplace.path("run")))
    of_rank_0 += line.at("steps_by_rank").at(0).get<int>();
  for (const nlohmann::json& line : json_lines_of(workplace.path("run/steps.jsonl")))
    in_lines += line.at("steps").get<int>();
  EXPECT_EQ(in_lines, of_rank_0) << "the lines count all steps of rank 0";
}

TEST(Ring, TrainingResumesAfterAnEpoch) {
  const Workplace workplace("ring_goes_on");
  const RingSettings settings = on_a_ring({"run.checkpoint_minutes=1e-6", "train.epochs=1"});
  const ProgramResult first = run_ranks(2, workplace.train(settings));
  EXPECT_EQ(first.exit_code, 0) << first.output;
  const std::vector<int> sums = sums_of_steps(workplace);
  const std::string metrics = text_of(workplace.path("run/metrics.jsonl"));
  ASSERT_EQ(sums.size(), 1u) << metrics;
  RingSettings longer = settings;
  longer.back() = "train.epochs=2";
  const ProgramResult second =
      run_ranks(2, workplace.train(longer, "--resume auto --resume-with train.epochs"));
  EXPECT_EQ(second.exit_code, 0) << second.output;
  EXPECT_TRUE(text_of(workplace.path("run/metrics.jsonl")).starts_with(metrics)) << "resumed, not restarted";
  EXPECT_EQ(sums_of_steps(workplace), (std::vector<int>{sums[0], sums[0]})) << "one more epoch";
}

// An epoch that takes minutes: a signal to one rank ends it, and a resumed run trains the remaining steps.
TEST(Ring, SignalStopsWithinAnEpoch) {
  const Workplace workplace("ring_signal");
  const RingSettings settings =
      on_a_ring({"data.format=synthetic", "data.synthetic.height=8", "data.synthetic.width=8",
                 "data.synthetic.channels=1", "data.synthetic.train_samples=4000000",
                 "data.synthetic.test_samples=16", "data.mean=[]", "data.deviation=[]"});
  const std::string held = workplace.path("held"), log = workplace.path("log");
  const ProgramResult stopped =
      run_shell(workplace.script(fmt::format("LOCKSTEP_HOLD=step:1:{} {} > {} 2>&1 &\nrun=$!\n", held,
                                             on_ranks(2, workplace.train(settings)), log) +
                                 wait_until("[ -e " + held + " ]") + "\npkill -USR1 --newest --full " +
                                 workplace.path("").string() + "\n" + wait_until("grep -q SIGUSR1 " + log) +
                                 "\nrm " + held + "\nwait $run\ncode=$?\ncat " + log + "\nexit $code"));
  EXPECT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  const std::int64_t saved = saved_steps(workplace);
  ASSERT_GT(saved, 0) << stopped.output;
  expect_parts(stopped.output, {fmt::format("step {}", saved)});
  RingSettings rest = settings;
  rest.push_back(fmt::format("train.steps={}", saved + 20));
  const ProgramResult resumed =
      run_ranks(2, workplace.train(rest, "--resume auto --resume-with train.steps"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(sums_of_steps(workplace), std::vector<int>{2 * 20}) << resumed.output;
}

// config_test.cpp has the keys that a ring excludes.
TEST(Ring, RefusesFaultsThatNeedAllRanks) {
  const Workplace workplace("ring_refused");
  expect_failure(run_shell(workplace.train(on_a_ring({}), "--inject kill:rank=0,step=5")), 64,
                 {"--inject kill:rank=0,step=5", "comm.topology"});
}

}  // namespace
}  // namespace lockstep
