// SPDX-License-Identifier: Apache-2.0
//
// `lockstep plan --ranks N`: from a real run's trace to the steps of a cluster.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// The trace of a short run with one rank, and plans made from it.
class SimulatedPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    const ProgramResult result = run_shell(workplace_.train(
        {"train.steps=12", "train.threads=1", "comm.bucket_mib=[0.001, 0.01, 0.001]"}, "--trace " + trace_));
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }

  ProgramResult plan(const std::string& flags, const std::string& file) const {
    return run_shell(fmt::format("{} plan {} --device-step {} {}", program("lockstep"),
                                 workplace_.path("config.toml").string(), file, flags));
  }
  ProgramResult plan(const std::string& flags) const { return plan(flags, trace_); }

  Workplace workplace_{"simulated_plan"};
  std::string trace_ = workplace_.path("trace.json").string();
};

TEST_F(SimulatedPlan, PredictsTheStepsOfAClusterAndSaysWhatItAssumes) {
  const auto file = workplace_.path("plan.json");
  const ProgramResult result = plan("--ranks 512 --nodes 64 --link 25GB/s,5us --json " + file.string());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* part : {"bytes per step", "predicted steps, up to 512 ranks on 64 nodes", "knee",
                           "5 us a message, 25 GB/s, as given", "assumed, not measured", "traced steps"})
    EXPECT_GT(count(result.output, part), 0) << part << " in\n" << result.output;
  const Json json = Json::parse(text_of(file));
  const Json& rows = json.at("predictions");
  ASSERT_EQ(rows.size(), 10U) << "1, 2, 4, 8 ranks of a node, and 2, 4, .. 64 nodes";
  EXPECT_NEAR(rows.front().at("efficiency").get<double>(), 1, 0.5);
  EXPECT_EQ(rows.back().at("ranks"), 512);
  EXPECT_GT(rows.back().at("exposed_seconds"), 0);
  EXPECT_GE(rows.back().at("step_seconds"), rows.front().at("step_seconds"));
  EXPECT_NEAR(json.at("between_nodes").at("latency_seconds").get<double>(), 5e-6, 1e-12);
}

// Ranks with one thread; the traced node has this machine's cores.
TEST_F(SimulatedPlan, KnowsThatRanksOfANodeShareItsCores) {
  const ProgramResult given = plan("--ranks 64 --cores 8");
  ASSERT_EQ(given.exit_code, 0) << given.output;
  EXPECT_EQ(
      count(given.output, "cores of a node: 8, as given, for 64 ranks of 1 thread: compute takes 8.00 times"),
      1)
      << given.output;
  EXPECT_EQ(count(given.output, "slowest of n nodes"), 1) << given.output;
  const ProgramResult traced = plan("--ranks 1");
  EXPECT_EQ(count(traced.output, "as many as the traced one has"), 1) << traced.output;
  EXPECT_EQ(count(traced.output, "compute takes 1.00 times"), 1) << traced.output;
}

// Each rank counts as a node.
TEST_F(SimulatedPlan, CountsWhatCodecsHold) {
  const auto plan_of = [&](const std::string& codec) {
    return run_ranks(2, fmt::format("{} plan {} --set comm.codec={} --set comm.compress_within_node=true",
                                    program("lockstep"), workplace_.path("config.toml").string(), codec));
  };
  const ProgramResult dense = plan_of("none"), fixed = plan_of("powersgd"), chosen = plan_of("auto");
  for (const ProgramResult* result : {&dense, &fixed, &chosen})
    ASSERT_EQ(result->exit_code, 0) << result->output;
  EXPECT_EQ(count(dense.output, "  codecs "), 0) << dense.output;
  EXPECT_EQ(count(fixed.output, "MiB  what is packed, sent and remembered"), 1) << fixed.output;
  EXPECT_EQ(count(chosen.output, "MiB  at most, about, of those that comm.codec = auto may choose"), 1)
      << chosen.output;
}

TEST_F(SimulatedPlan, RefusesWhatCannotBe) {
  expect_failure(plan("--ranks 6 --nodes 4 --link 1GB/s"), exit_code::usage,
                 {"--ranks 6 --nodes 4: every node has equally many ranks"});
  expect_failure(plan("--ranks 4 --nodes 4 --link 0GB/s"), exit_code::usage,
                 {"--link \"0GB/s\": give a speed above 0 in GB/s"});
  expect_failure(plan("--ranks 4 --nodes 4"), exit_code::usage,
                 {"--nodes above 1 wants the link between them"});
  expect_failure(plan("--link 1GB/s"), exit_code::usage, {"--link wants --ranks N"});
  expect_failure(plan("--cores 8"), exit_code::usage, {"--cores wants --ranks N"});
  expect_failure(plan("--ranks 4 --set train.threads=3"), exit_code::config,
                 {"was traced with train.threads = 1, and the configuration has 3"});
  expect_failure(plan("--ranks 4 --set train.batch=16"), exit_code::config,
                 {"was traced with train.batch = 8, and the configuration has 16"});
  expect_failure(plan("--ranks 4 --nodes 4 --link 1GB/s --set comm.between_nodes=mpi"), exit_code::config,
                 {"comm.between_nodes = mpi: there is no model of MPI's own sums"});
  expect_failure(plan("--ranks 4", workplace_.path("config.toml").string()), exit_code::data,
                 {"config.toml: not a trace of lockstep train"});
  expect_failure(plan("--ranks 4", "/nowhere/trace.json"), exit_code::io, {"cannot read the trace /nowhere"});
}

}  // namespace
}  // namespace lockstep
