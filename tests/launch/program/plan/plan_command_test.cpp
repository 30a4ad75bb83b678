// SPDX-License-Identifier: Apache-2.0
//
// `lockstep plan --ranks N`: from a real run's trace, or from a step time, to the steps of a cluster.
// `lockstep plan --gpu`: from published figures to estimates for GPUs.

#include <map>
#include <regex>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/message_of.h"

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

  ProgramResult plan(const std::string& flags) const {
    return run_shell(fmt::format("{} plan {} --device-step {} {}", program("lockstep"),
                                 workplace_.path("config.toml").string(), trace_, flags));
  }

  Workplace workplace_{"simulated_plan"};
  std::string trace_ = workplace_.path("trace.json").string();
};

TEST_F(SimulatedPlan, PredictsTheStepsOfAClusterAndNamesItsAssumptions) {
  const auto file = workplace_.path("plan.json");
  const ProgramResult result = plan("--ranks 512 --nodes 64 --link 25GB/s,5us --json " + file.string());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json json = Json::parse(text_of(file));
  std::size_t gradient_bytes = 0;
  for (const Json& bytes : json.at("bucket_bytes")) gradient_bytes += bytes.get<std::size_t>();
  EXPECT_GT(gradient_bytes, 0U);
  expect_parts(result.output, {fmt::format(" {} ", gradient_bytes), "512 ranks", "64 nodes", "5 us",
                               "25 GB/s", "--node-link"});
  if (const int knee = json.at("knee_ranks"); knee > 0)
    expect_parts(result.output, {fmt::format(" {} rank", knee)});
  EXPECT_FALSE(json.at("from").empty());
  for (const Json& line : json.at("from")) expect_parts(result.output, {line.get<std::string>()});
  const Json& rows = json.at("predictions");
  ASSERT_EQ(rows.size(), 10U) << "1, 2, 4, 8 ranks of a node, and 2, 4, .. 64 nodes";
  EXPECT_NEAR(rows.front().at("efficiency").get<double>(), 1, 0.5);
  EXPECT_EQ(rows.back().at("ranks"), 512);
  EXPECT_GT(rows.back().at("exposed_seconds"), 0);
  EXPECT_GE(rows.back().at("step_seconds"), rows.front().at("step_seconds"));
  EXPECT_NEAR(json.at("between_nodes").at("latency_seconds").get<double>(), 5e-6, 1e-12);
}

TEST_F(SimulatedPlan, NamesSettingsThatItPredictsAsADenseSum) {
  const auto file = workplace_.path("plan.json");
  for (const auto& [setting, named] : std::map<std::string, std::string>{
           {"comm.codec_for=*.weight=powersgd", "comm.codec_for = *.weight=powersgd"},
           {"train.average_every=4", "train.average_every = 4"},
           {"comm.topology=ring", "comm.topology = ring"},
           {"train.staleness=1", "train.staleness = 1"}}) {
    const ProgramResult result = plan("--ranks 4 --json " + file.string() + " --set '" + setting + "'");
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(count(Json::parse(text_of(file)).at("from").dump(), named), 1) << setting;
    const bool changes_bytes = !setting.starts_with("train.staleness");
    EXPECT_EQ(count(result.output, named), changes_bytes ? 2 : 1) << result.output;
  }
}

// The smallest rest of a bucket that belongs to all ranks is below the rounding of the table.
TEST(Plan, ShardedExchangeDividesTheOptimizersState) {
  const Workplace workplace("sharded_plan");
  const auto optimizer_mib = [&](int ranks, const std::string& exchange) {
    const ProgramResult result = run_ranks(
        ranks,
        fmt::format("{} plan {} --set model.name=mlp --set model.mlp.width=1024 --set optimizer.name=adamw "
                    "--set comm.exchange={}",
                    program("lockstep"), workplace.path("config.toml").string(), exchange));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::smatch row;
    if (!std::regex_search(result.output, row, std::regex("\n +optimizer +([0-9.]+) MiB"))) return 0.0;
    return std::stod(row[1]);
  };
  const double whole = optimizer_mib(1, "dense");
  EXPECT_GT(whole, 1);
  EXPECT_EQ(optimizer_mib(1, "sharded"), whole);
  EXPECT_NEAR(optimizer_mib(4, "sharded"), whole / 4, 0.011);
}

// Ranks with one thread; the traced node has this machine's cores. MPI's own sums have no model, but one node
// sums nothing between nodes.
TEST_F(SimulatedPlan, RanksOfANodeShareItsCores) {
  const auto file = workplace_.path("plan.json");
  const ProgramResult given =
      plan("--ranks 64 --cores 8 --set comm.between_nodes=mpi --json " + file.string());
  ASSERT_EQ(given.exit_code, 0) << given.output;
  const Json of_given = Json::parse(text_of(file));
  EXPECT_EQ(of_given.at("node").at("cores"), 8);
  EXPECT_TRUE(std::regex_search(given.output, std::regex("\\b8\\b.*64 ranks.*1 thread\\b.*\\b8\\.00\\b")))
      << given.output;
  const ProgramResult traced = plan("--ranks 1 --json " + file.string());
  ASSERT_EQ(traced.exit_code, 0) << traced.output;
  const Json of_traced = Json::parse(text_of(file)), trace = Json::parse(text_of(trace_));
  EXPECT_EQ(of_traced.at("node").at("cores"), trace.at("otherData").at("lockstep").at("node_cores"));
  EXPECT_TRUE(std::regex_search(traced.output, std::regex("1 rank\\b.*1 thread\\b.*\\b1\\.00\\b")))
      << traced.output;
  // The slowest of several nodes, or of several ranks, is drawn from the traced steps.
  EXPECT_NE(of_given.at("from").back(), of_traced.at("from").back());
}

// Each rank counts as a node.
TEST(Plan, CountsTheMemoryOfCodecs) {
  const Workplace workplace("codec_plan");
  const auto plan_of = [&](const std::string& codec) {
    return run_ranks(2, fmt::format("{} plan {} --set comm.codec={} --set comm.compress_within_node=true",
                                    program("lockstep"), workplace.path("config.toml").string(), codec));
  };
  const ProgramResult fixed = plan_of("powersgd"), chosen = plan_of("auto");
  for (const ProgramResult* result : {&fixed, &chosen}) ASSERT_EQ(result->exit_code, 0) << result->output;
  const std::regex row("\n +codecs +[0-9.]+ MiB"), row_of_choice("\n +codecs +[0-9.]+ MiB.*comm\\.codec");
  EXPECT_TRUE(std::regex_search(fixed.output, row)) << fixed.output;
  EXPECT_TRUE(std::regex_search(chosen.output, row_of_choice)) << chosen.output;
}

// GPUs that are not present; no trace is needed.
class GpuPlan : public ::testing::Test {
 protected:
  ProgramResult plan(const std::string& flags) const {
    return run_shell(
        fmt::format("{} plan {} {}", program("lockstep"), workplace_.path("config.toml").string(), flags));
  }

  Workplace workplace_{"gpu_plan"};
};

TEST_F(GpuPlan, EstimatesEachGpuAndNamesItsSources) {
  const auto file = workplace_.path("gpus.json");
  const ProgramResult result = plan("--gpu l4,h200 --gpu v100 --json " + file.string());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(lines_naming(result.output, "h200", " yes "), "\n"), 1);
  expect_parts(lines_naming(result.output, "v100", "not supported"), {"7.0"});
  expect_parts(result.output,
               {"estimates for one GPU", "NVIDIA H200 Tensor Core GPU Datasheet", "4800 GB/s"});
  const Json json = Json::parse(text_of(file));
  EXPECT_EQ(json.at("estimate"), true);
  const Json& gpus = json.at("gpus");
  ASSERT_EQ(gpus.size(), 3U);
  EXPECT_EQ(gpus[0].at("name"), "h200") << "in the table's order";
  EXPECT_EQ(gpus[1].at("name"), "l4");
  const auto rate = [&](int row, const char* end) {
    return gpus[static_cast<std::size_t>(row)].at("samples_per_second").at(end).get<double>();
  };
  EXPECT_GT(rate(0, "high"), rate(1, "high"));
  EXPECT_GT(rate(0, "low"), rate(1, "low"));
  for (const int row : {0, 1}) {
    EXPECT_GT(rate(row, "low"), 0);
    EXPECT_LT(rate(row, "low"), rate(row, "high"));
  }
  EXPECT_EQ(gpus[0].at("fits"), true);
  EXPECT_EQ(gpus[0].at("batch"), json.at("batch"));
  EXPECT_EQ(gpus[2].at("supported"), false);
  EXPECT_EQ(gpus[2].at("missing_precisions"), nlohmann::json({"tf32", "bf16"}));
  EXPECT_FALSE(gpus[2].contains("samples_per_second"));
  std::size_t planned = 0;
  for (const Json& bytes : json.at("planned_bytes")) planned += bytes.get<std::size_t>();
  EXPECT_GT(gpus[0].at("needed_bytes").get<std::size_t>(), planned) << "with the workspace of kernels";
}

TEST_F(GpuPlan, MeasuredStepsStandBesideTheEstimate) {
  const ProgramResult result = plan(
      "--gpu h200,h100 --set model.name=resnet18 --set train.precision=fp16 --set data.format=synthetic "
      "--set data.synthetic.height=32 --set data.synthetic.width=32 --set data.synthetic.channels=3 "
      "--set data.synthetic.classes=10 --set data.mean=[] --set data.deviation=[]");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_in_order(result.output,
                  {"measured", "batch 512: 95505 samples/s", "benchmarks/results/gpu_speed.json"});
  EXPECT_EQ(count(result.output, "h200, batch"), 2);
  EXPECT_EQ(count(result.output, "h100, batch"), 0);
}

TEST_F(GpuPlan, PredictsAClusterOfGpusFromAStepTime) {
  const auto file = workplace_.path("cluster.json");
  const std::string cluster =
      "--ranks 16 --nodes 2 --link 8x50GB/s --device-step 20ms --json " + file.string();
  const ProgramResult result = plan("--gpu h100 " + cluster);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json json = Json::parse(text_of(file));
  EXPECT_NEAR(json.at("predictions").front().at("step_seconds").get<double>(), 0.020, 1e-9);
  EXPECT_EQ(json.at("predictions").back().at("ranks"), 16);
  EXPECT_GT(json.at("predictions").back().at("step_seconds").get<double>(), 0.020);
  EXPECT_EQ(json.at("nccl").at("rails"), 8);
  EXPECT_EQ(json.at("nccl").at("rail_bytes_per_second"), 50e9);
  EXPECT_EQ(json.at("nccl").at("nvls_bytes_per_second"), 480e9);
  EXPECT_FALSE(json.contains("between_nodes"));
  const Json& sum = json.at("nccl_sums").back();
  EXPECT_EQ(sum.at("nodes"), 2);
  expect_parts(result.output, {"16 ranks on 2 nodes: " + sum.at("algorithm").get<std::string>(),
                               "8 network cards", "NVIDIA/nccl-tests", "20 ms"});

  // step_trace_test.cpp has the other conflicts of flags.
  expect_failure(plan("--gpu all --cores 4"), exit_code::usage, {"--cores", "--ranks"});
  // Links that are not published must be given, and replace published ones.
  expect_failure(plan("--gpu l4 " + cluster), exit_code::usage, {"--gpu l4", "--node-link"});
  const ProgramResult given = plan("--gpu l4 --node-link 20GB/s " + cluster);
  ASSERT_EQ(given.exit_code, 0) << given.output;
  EXPECT_EQ(Json::parse(text_of(file)).at("nccl").at("ring_bytes_per_second"), 20e9);
}

// NCCL sums bf16 as fp32 from 10 ranks on.
TEST_F(GpuPlan, SumsOf16BitsHaveTheBytesOfTheirSumType) {
  const auto file = workplace_.path("sums.json");
  const auto plan_of = [&](const std::string& precision, const std::string& sum_type) {
    const ProgramResult result =
        plan(fmt::format("--gpu h100 --ranks 16 --nodes 2 --link 8x50GB/s --device-step 2ms --json {} "
                         "--set train.precision={} --set comm.sum_type={}",
                         file.string(), precision, sum_type));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return Json::parse(text_of(file), nullptr, false);
  };
  const auto bytes = [](const Json& planned, int ranks) {
    for (const Json& sum : planned.at("nccl_sums"))
      if (sum.at("ranks").get<int>() == ranks) return sum.at("bytes").get<double>();
    return 0.0;
  };
  const Json own = plan_of("bf16", "gradients"), wide = plan_of("bf16", "fp32"),
             chosen = plan_of("bf16", "auto");
  EXPECT_GT(bytes(own, 16), 0);
  EXPECT_EQ(bytes(wide, 16), 2 * bytes(own, 16));
  EXPECT_EQ(bytes(chosen, 8), bytes(own, 8));
  EXPECT_EQ(bytes(chosen, 16), bytes(wide, 16));
  EXPECT_GT(wide.at("predictions").back().at("sum_seconds"), own.at("predictions").back().at("sum_seconds"));
  EXPECT_EQ(count(wide.at("from").dump(), "comm.sum_type = fp32"), 1);
  EXPECT_EQ(count(own.at("from").dump(), "comm.sum_type"), 0);
  // 16 bits halve the bytes only where sums stay narrow.
  EXPECT_EQ(count(plan_of("fp32", "fp32").at("from").dump(), "16 bits"), 0);
  EXPECT_EQ(count(plan_of("fp32", "gradients").at("from").dump(), "16 bits"), 1);
}

}  // namespace
}  // namespace lockstep
