// SPDX-License-Identifier: Apache-2.0
//
// The program on a ring of ranks: the number of steps by rank, the final average on all ranks, and a resumed
// training.
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program.h"

namespace lockstep {
namespace {

using RingSettings = std::vector<std::string>;

RingSettings on_a_ring(RingSettings more) {
  more.insert(more.begin(), {"model.name=cnn", "comm.topology=ring"});
  return more;
}

// The sums of the numbers in each "steps by rank: 12, 9, 10".
std::vector<int> sums_of_steps(const std::string& output) {
  std::vector<int> sums;
  const std::regex line("steps by rank: ([0-9, ]+)"), number("[0-9]+");
  for (std::sregex_iterator found(output.begin(), output.end(), line), end; found != end; ++found) {
    const std::string steps = (*found)[1];
    int sum = 0;
    for (std::sregex_iterator each(steps.begin(), steps.end(), number); each != end; ++each)
      sum += std::stoi(each->str());
    sums.push_back(sum);
  }
  return sums;
}

// The program fails if its ranks have different state.
TEST(Ring, RanksShareTheStepsAndEndWithOneAverage) {
  const Workplace workplace("ring");
  const auto file = workplace.path("digest");
  const ProgramResult result =
      run_ranks(3, workplace.train(on_a_ring({"train.epochs=2", "train.steps=11", "run.check_every=1"}),
                                   "--digest " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::vector<int> sums = sums_of_steps(result.output);
  int all = 0;
  for (const int sum : sums) {
    EXPECT_EQ(sum % 3, 0) << result.output;
    all += sum;
  }
  EXPECT_EQ(all, 3 * 11) << result.output;
  EXPECT_FALSE(text_of(file).empty());
}

TEST(Ring, ATrainingGoesOnBehindAnEpoch) {
  const Workplace workplace("ring_goes_on");
  const RingSettings settings = on_a_ring({"run.checkpoint_minutes=1e-6", "train.epochs=1"});
  const ProgramResult first = run_ranks(2, workplace.train(settings));
  EXPECT_EQ(first.exit_code, 0) << first.output;
  RingSettings longer = settings;
  longer.back() = "train.epochs=2";
  const ProgramResult second =
      run_ranks(2, workplace.train(longer, "--resume auto --resume-with train.epochs"));
  EXPECT_EQ(second.exit_code, 0) << second.output;
  EXPECT_EQ(count(second.output, "training goes on after step"), 1) << second.output;
  EXPECT_EQ(sums_of_steps(second.output), sums_of_steps(first.output)) << "one more epoch";
}

// An epoch that takes minutes: a signal to one rank ends it, and a resumed run trains the remaining steps.
TEST(Ring, ASignalEndsAnEpochWithinIt) {
  const Workplace workplace("ring_signal");
  const RingSettings settings =
      on_a_ring({"data.format=synthetic", "data.synthetic.height=8", "data.synthetic.width=8",
                 "data.synthetic.channels=1", "data.synthetic.train_samples=4000000",
                 "data.synthetic.test_samples=16", "data.mean=[]", "data.deviation=[]"});
  const std::string held = workplace.path("held"), log = workplace.path("log");
  const ProgramResult stopped = run_shell(workplace.script(
      fmt::format("LOCKSTEP_HOLD=step:1:{1} mpirun --oversubscribe --bind-to none -np 2 {0} > {2} 2>&1 &\n"
                  "run=$!\n",
                  workplace.train(settings), held, log) +
      wait_until("[ -e " + held + " ]") + "\npkill -USR1 --newest --full " + workplace.path("").string() +
      "\n" + wait_until("grep -q 'asks to stop' " + log) + "\nrm " + held + "\nwait $run\ncode=$?\ncat " +
      log + "\nexit $code"));
  EXPECT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  std::smatch step;
  ASSERT_TRUE(std::regex_search(stopped.output, step, std::regex("training stopped after step ([0-9]+)")))
      << stopped.output;
  RingSettings rest = settings;
  rest.push_back(fmt::format("train.steps={}", std::stoll(step[1]) + 20));
  const ProgramResult resumed =
      run_ranks(2, workplace.train(rest, "--resume auto --resume-with train.steps"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(sums_of_steps(resumed.output), std::vector<int>{2 * 20}) << resumed.output;
}

TEST(Ring, IsRefusedWithWhatNeedsAllRanks) {
  const Workplace workplace("ring_refused");
  expect_failure(run_ranks(2, workplace.train(on_a_ring({"train.staleness=1"}))), 78,
                 {"comm.topology = \"ring\": allowed with train.staleness = 0"});
  expect_failure(run_ranks(2, workplace.train(on_a_ring({"comm.codec=int8"}))), 78,
                 {"comm.topology = \"ring\": allowed with comm.codec = \"none\""});
  expect_failure(run_ranks(2, workplace.train(on_a_ring({}), "--inject kill:rank=1,step=5")), 64,
                 {"--inject kill:rank=1,step=5: a fault is made before a step that all ranks take together"});
}

}  // namespace
}  // namespace lockstep
