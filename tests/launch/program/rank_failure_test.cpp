// SPDX-License-Identifier: Apache-2.0
//
// A failure of one rank ends the whole job. The jobs of failing_rank would train for days; these tests expect
// them to end with that rank's code.
#include <algorithm>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/fault_run.h"
#include "tests/launch/program/program.h"
#include "tests/matches_in.h"

namespace lockstep {
namespace {

ProgramResult run_failing(const std::string& kind, int rank) {
  return run_ranks(3, program("failing_rank") + " " + kind + " " + std::to_string(rank));
}

// Expects one line, not one per rank, that names the rank and the step and contains the reason.
void expect_failed_rank(const ProgramResult& result, int exit_code, int rank, const std::string& reason) {
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  const std::string line = fmt::format(R"(\brank {}\b[^\n]*\bstep 26\b[^\n]*{})", rank, reason);
  EXPECT_EQ(matches_in(result.output, line), 1) << result.output;
}

TEST(Failure, UnreadableDataOnAnyRankEndsTheJob) {
  for (const int rank : {0, 2})
    expect_failed_rank(run_failing("data", rank), exit_code::data, rank, "sample is broken");
}

TEST(Failure, OtherExceptionEndsTheJob) {
  expect_failed_rank(run_failing("exception", 1), exit_code::failed, 1, "not an Error of Lockstep");
}

TEST(Failure, OutOfMemoryOnOneRankEndsTheJob) {
  expect_failed_rank(run_failing("memory", 1), exit_code::io, 1, "std::bad_alloc");
}

// No watchdog: a rank that waits too long for a peer reports it. Both peers of the stopped rank may do so. On
// a busy machine a rank may wait too long before rank 1 is stopped; the report is the same.
TEST(Failure, HangingRankEndsTheJob) {
  const ProgramResult result = run_failing("stopped", 1);
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  EXPECT_GE(matches_in(result.output, R"(\brank \d\b[^\n]*\ball_reduce \d+\b[^\n]*\bbucket \d+)"), 1)
      << result.output;
  EXPECT_GE(count(result.output, "comm.timeout_seconds"), 1) << result.output;
}

// The watchdog reports the stopped rank, what its peers wait for, and the steps of both.
TEST(Failure, StoppedRankIsNamed) {
  for (const int stopped : {0, 2}) {
    const ProgramResult result = run_until_fault(kInjectedFault, [&](const std::string& limit) {
      const Workplace workplace("stopped");
      return run_ranks(3, workplace.train({"train.epochs=1000000", limit},
                                          fmt::format("--inject stop:rank={},step=5", stopped)));
    });
    EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
    // The stopped rank with its process, for how long it has been silent, and its last collective.
    const std::regex blame(fmt::format(R"(\brank {}\b[^\n]*\bprocess (\d+)\b[^\n]*\b\d+(\.\d+)? s\b[^\n]*)"
                                       R"(\b(all_reduce|all_gather|broadcast|barrier) \d+)",
                                       stopped));
    std::smatch blamed;
    ASSERT_TRUE(std::regex_search(result.output, blamed, blame)) << result.output;
    // The state of that process on its machine.
    const std::string state = fmt::format(R"(\bprocess {}\b[^\n]*\(T\))", blamed[1].str());
    EXPECT_EQ(matches_in(result.output, state), 1) << result.output;
    // Its peers wait in a collective, except for one that the machine delays. One of them is named after that
    // state, before its stack.
    const int first = stopped == 0 ? 1 : 0;
    const std::string peers = fmt::format(R"(\branks? ({}|{})\b[^(\n]*\ball_reduce \d+)", first, first + 1);
    EXPECT_GE(matches_in(result.output, peers), 1) << result.output;
    const std::size_t state_end = result.output.find("(T)");
    const std::size_t peer = std::min(result.output.find(fmt::format("rank {}", first), state_end),
                                      result.output.find(fmt::format("rank {}", first + 1), state_end));
    const std::size_t stack = result.output.rfind("lockstep::Trainer::step()");
    ASSERT_NE(stack, std::string::npos) << result.output;
    EXPECT_LT(peer, stack) << result.output;
    EXPECT_GE(count(result.output, "lockstep::HostCommunicator::perform"), 1) << result.output;
  }
}

// No peer waits for the rank, so only the limit of its step can end the job.
TEST(Failure, OnlyRankThatHangsInAStepEndsTheJob) {
  const ProgramResult result = run_until_fault(kInjectedFault, [](const std::string& limit) {
    const Workplace workplace("alone");
    return run_ranks(1, workplace.train({"train.epochs=1000000", limit}, "--inject hang:rank=0,step=5"));
  });
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  EXPECT_EQ(matches_in(result.output, R"(\brank 0 \(process \d+[^\n]*\bstep\b[^\n]*\b\d+\.\d s\b)"), 1)
      << result.output;
}

// MPI waits for the rank without a limit, and no watchdog knows any rank yet. The other ranks start after
// that rank is stopped. One of them reports it, usually the lowest.
TEST(Failure, StoppedRankBeforeMpiStartsEndsTheJobAndIsNamed) {
  for (const int stopped : {0, 2}) {
    const Workplace workplace("never_starts");
    const std::string command = workplace.script(
        fmt::format("export LOCKSTEP_START_SECONDS=1\n"
                    "if [ $OMPI_COMM_WORLD_RANK = {0} ]; then echo $$ > {1}; kill -STOP $$; fi\n"
                    "until grep -sq '^State:.T' /proc/$(cat {1} 2>/dev/null)/status; do sleep 0.02; done\n"
                    "exec {2}",
                    stopped, workplace.path("process").string(), workplace.train({})));
    const ProgramResult result = run_ranks(3, command);
    EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
    for (const std::string& line : {fmt::format(R"(\[rank [{}]\][^\n]*\b3 (processes|ranks)\b[^\n]*\b1 s\b)",
                                                stopped == 0 ? "12" : "01"),
                                    fmt::format(R"(\brank {}\b[^\n]*\bprocess \d+\b[^\n]*\(T\))", stopped),
                                    std::string("LOCKSTEP_START_SECONDS")})
      EXPECT_GE(matches_in(result.output, line), 1) << line << ":\n" << result.output;
  }
}

// Rank 0 waits for rank 1 to start MPI.
TEST(Failure, WrongCommandLineOfOneRankIsPrinted) {
  const Workplace workplace("one_command_line");
  const std::string command =
      workplace.script("[ $OMPI_COMM_WORLD_RANK = 1 ] && flag=--bogus\nexec " + workplace.train({}, "$flag"));
  expect_failure(run_ranks(2, command), exit_code::usage, {"rank 1: ", "--bogus"});
}

TEST(Failure, InvalidStartTimeoutIsRefused) {
  const ProgramResult result =
      run_shell("LOCKSTEP_START_SECONDS=soon " + program("lockstep") + " train fashion_mnist_mlp");
  EXPECT_EQ(result.exit_code, exit_code::config) << result.output;
  for (const char* part : {"LOCKSTEP_START_SECONDS", "\"soon\""})
    EXPECT_GE(count(result.output, part), 1) << part << ":\n" << result.output;
}

TEST(Failure, OneDifferingBitIsFoundAtTheEnd) {
  const ProgramResult result = run_failing("parameter", 2);
  EXPECT_EQ(result.exit_code, exit_code::failed) << result.output;
  EXPECT_EQ(matches_in(result.output, R"(\brank 2\b[^\n]*\bparameters\b[^\n]*\brank 0\b)"), 1)
      << result.output;
}

}  // namespace
}  // namespace lockstep
