// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/step_trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files/file_text.h"
#include "core/timeline.h"
#include "launch/program/config/config.h"
#include "launch/program/plan/fit.h"
#include "launch/program/plan/simulation.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// Steps of 100 ms: 10 of data, 20 of forward, 40 of backward, `exchange` and 5 of optimizer. Two buckets are
// final after 10 and 40 ms of backward, and their sums take `sum` ms.
std::string trace_text(int steps, const TracedRun& run, std::int64_t sum, std::int64_t exchange) {
  Timeline timeline;
  timeline.describe(to_json(run));
  for (int step = 0; step < steps; ++step) {
    std::int64_t now = step * 100 * kMs;
    const auto phase = [&](const char* name, std::int64_t milliseconds) {
      timeline.record({.name = name, .index = step, .begin_ns = now, .end_ns = now + milliseconds * kMs});
      now += milliseconds * kMs;
    };
    phase("data", 10);
    phase("forward", 20);
    const std::int64_t backward = now;
    for (const auto& [bucket, at] : {std::pair{0, 10}, {1, 40}}) {
      const std::int64_t begin = backward + at * kMs;
      timeline.record({.name = "bucket",
                       .track = Track::communication,
                       .index = bucket,
                       .numbered = true,
                       .begin_ns = begin,
                       .end_ns = begin + sum * kMs});
    }
    phase("backward", 40);
    phase("exchange", exchange);
    phase("optimizer", 5);
  }
  const TemporaryFolder folder;
  const auto file = folder.path() / "trace.json";
  timeline.write_chrome_trace(file, 0);
  return file_text(file);
}

StepTrace traced(int steps, const TracedRun& run, std::int64_t sum = 0, std::int64_t exchange = 0) {
  return parse_step_trace(trace_text(steps, run, sum, exchange), "trace.json");
}

TracedRun run_of_two_buckets(int ranks = 1) {
  return {.network = "cnn",
          .batch = 8,
          .accumulation = 1,
          .ranks = ranks,
          .nodes = ranks,
          .overlap = true,
          .bucket_bytes = {1'000'000, 3'000'000}};
}

TEST(StepTrace, OmitsTheFirstTwoStepsAndTheLast) {
  const StepTrace trace = traced(6, run_of_two_buckets());
  EXPECT_EQ(trace.run.network, "cnn");
  EXPECT_EQ(trace.run.gradient_bytes(), 4'000'000U);
  ASSERT_EQ(trace.steps.size(), 3U);
  const StepTrace::Step& step = trace.steps[0];
  EXPECT_NEAR(step.seconds, 0.100, 1e-9);
  EXPECT_NEAR(step.compute(), 0.075, 1e-9);
  EXPECT_NEAR(step.last_backward, 0.040, 1e-9);
  ASSERT_EQ(step.sums.size(), 2U);
  EXPECT_NEAR(step.sums[0].begin, 0.010, 1e-9);
  EXPECT_NEAR(step.sums[1].begin, 0.040, 1e-9);
}

TEST(StepTrace, PredictsWhenOtherBucketsAreFinal) {
  const ComputeModel compute = ComputeModel::of(traced(6, run_of_two_buckets()));
  EXPECT_NEAR(compute.step_seconds(), 0.100, 1e-9);
  EXPECT_NEAR(compute.rest_seconds, 0.025, 1e-9);
  EXPECT_NEAR(compute.arrivals.final_seconds(500'000), 0.005, 1e-9);
  EXPECT_NEAR(compute.arrivals.final_seconds(1'000'000), 0.010, 1e-9);
  EXPECT_NEAR(compute.arrivals.final_seconds(2'500'000), 0.025, 1e-9);
  EXPECT_NEAR(compute.arrivals.final_seconds(4'000'000), 0.040, 1e-9);
}

TEST(StepTrace, MeasuresTheCostOfSums) {
  const StepTrace trace = traced(6, run_of_two_buckets(2), 8, 8);
  const std::vector<MeasuredSum> sums = measured_sums(trace, 125e6);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_NEAR(sums[1].seconds, 0.008, 1e-9);
  EXPECT_NEAR(sums[1].bytes, 3e6, 1);
  EXPECT_NEAR(sums[1].messages, 2, 1e-12);
  EXPECT_THROW(measured_sums(traced(6, run_of_two_buckets()), 0), ConfigError);
}

TEST(StepTrace, CountsBytesByTheAllReduceAlgorithm) {
  TracedRun run = run_of_two_buckets(3);
  run.between_nodes = AllReduceWay::halving;
  EXPECT_NEAR(measured_sums(traced(6, run, 8, 8), 125e6)[1].bytes, 1.5 * 3e6, 1);
  run.between_nodes = AllReduceWay::automatic;
  EXPECT_NEAR(measured_sums(traced(6, run, 8, 8), 125e6)[1].bytes, 4.0 / 3 * 3e6, 1);
  run.between_nodes = AllReduceWay::mpi;
  EXPECT_THROW(measured_sums(traced(6, run, 8, 8), 125e6), ConfigError);
}

// A trace whose second sum waits for a peer in its first 4 ms.
StepTrace traced_with_waits(std::int64_t sum) {
  std::string text = trace_text(6, run_of_two_buckets(2), sum, sum), meetings;
  for (int step = 0; step < 6; ++step) {
    meetings += fmt::format(R"(,{{"name":"meet","cat":"communication","ph":"X","pid":0,"tid":2,"ts":{},)"
                            R"("dur":4000,"args":{{"bucket":1}}}})",
                            step * 100'000 + 70'000);
  }
  text.insert(text.rfind(']'), meetings);
  return parse_step_trace(text, "trace.json");
}

TEST(StepTrace, ExcludesRecordedWaitsForPeers) {
  const StepTrace trace = traced_with_waits(8);
  EXPECT_TRUE(trace.tells_meetings);
  const std::vector<MeasuredSum> sums = measured_sums(trace, 0);
  EXPECT_NEAR(sums[0].seconds, 0.008, 1e-9);
  EXPECT_NEAR(sums[1].seconds, 0.004, 1e-9);
}

// The first sum ends when the second begins: all ranks took part in it.
TEST(StepTrace, WaitBetweenTwoSumsIsNotALateRank) {
  EXPECT_NEAR(measured_sums(traced_with_waits(30), 0)[1].seconds, 0.030, 1e-9);
}

// The same code on a processor of half the speed: all phases take twice as long.
TEST(StepTrace, ForwardPassesGiveTheSpeedOfADevice) {
  ComputeModel slow = ComputeModel::of(traced(6, run_of_two_buckets()));
  const StepTrace runs[] = {traced(6, run_of_two_buckets(2), 8, 8)};
  EXPECT_NEAR(pace_beside(slow, runs), 1, 1e-9);
  slow.forward_seconds *= 2;
  slow.backward_seconds = 2 * 0.036;
  EXPECT_NEAR(pace_beside(slow, runs), 2, 1e-9);
  EXPECT_NEAR(fit_loss(slow, runs).per_second, 0.5, 1e-6)
      << "as if backward took 36 ms at the speed of the run";
}

// Two single-threaded ranks that share a core are as slow as one on a core of half the speed. This says
// nothing about the device.
TEST(StepTrace, DetectsRanksThatShareCores) {
  TracedRun run = run_of_two_buckets(2);
  run.nodes = 1;
  run.threads = 1;
  run.node_cores = 1;
  EXPECT_EQ(slowdown_of(run), 2);
  EXPECT_EQ(slowdown_of(run_of_two_buckets(2)), 1) << "the trace has no such value";
  const StepTrace runs[] = {traced(6, run, 8, 8)};
  EXPECT_EQ(slowdown_of(runs[0].run), 2) << "the value survives writing and reading";
  const ComputeModel device = ComputeModel::of(traced(6, run_of_two_buckets())).slowed(0.5);
  EXPECT_NEAR(pace_beside(device, runs), 1, 1e-9);
}

// Backward takes 40 ms with 8 ms of hidden sums, and 36 ms alone: 4 of 8 ms are lost.
TEST(StepTrace, MeasuresHowMuchSumsSlowCompute) {
  ComputeModel alone = ComputeModel::of(traced(6, run_of_two_buckets()));
  alone.backward_seconds = 0.036;
  TracedRun run = run_of_two_buckets(2);
  const StepTrace on_gpu[] = {traced(6, run, 8, 8)};
  EXPECT_NEAR(fit_loss(alone, on_gpu).per_second, 0.5, 1e-6);
  EXPECT_EQ(fit_loss(alone, on_gpu).per_byte, 0);
  run.threads = 1;
  run.node_cores = 2;
  const StepTrace on_cores[] = {traced(6, run, 8, 8)};
  EXPECT_EQ(fit_loss(alone, on_cores).per_second, 0);
  EXPECT_NEAR(fit_loss(alone, on_cores).per_byte, 0.004 / 1e6, 1e-12) << "the first bucket is hidden, 1 MB";
  const StepTrace two_links[] = {traced(6, run, 8, 8), traced(6, run, 16, 16)};
  EXPECT_NEAR(fit_loss(alone, two_links).per_byte, 0.004 / 1e6, 1e-12)
      << "a slower link costs as much compute";
  alone.backward_seconds = 0.050;
  EXPECT_EQ(fit_loss(alone, on_gpu).per_second, 0) << "a run that is faster with sums shows noise";
}

TEST(StepTrace, InvalidNumbersAreRefusedByName) {
  const std::string sound = trace_text(6, run_of_two_buckets(), 0, 0);
  const auto message = [&](const std::string& part, const std::string& instead) {
    std::string text = sound;
    const std::size_t place = text.find(part);
    CHECK(place != std::string::npos, "{}", part);
    text.replace(place, part.size(), instead);
    return message_of<DataError>([&] { parse_step_trace(text, "a.json"); });
  };
  for (const std::string number : {"0", "-1", "2.5", "1e300", "\"2\"", "null"}) {
    EXPECT_NE(message("\"ranks\":1", "\"ranks\":" + number).find("\"ranks\""), std::string::npos) << number;
    EXPECT_NE(message("[1000000,", "[" + number + ",").find("\"bucket_bytes\""), std::string::npos) << number;
  }
  EXPECT_NE(message("\"index\":3", "\"index\":1e300").find("\"index\""), std::string::npos);
  EXPECT_NE(message("\"threads\":0", "\"threads\":1e300").find("\"threads\""), std::string::npos);
}

TEST(StepTrace, TraceWithoutStepsIsRefused) {
  const auto message = [](std::string_view text) {
    return message_of<DataError>([&] { parse_step_trace(text, "a.json"); });
  };
  for (const char* text : {"not JSON", "{}", R"({"traceEvents": [], "otherData": {}})"})
    expect_parts(message(text), {"a.json", "lockstep train", "--trace", "json.exception"});
  const std::string incomplete = message_of<DataError>([] { traced(3, run_of_two_buckets()); });
  expect_parts(incomplete, {"trace.json", "lockstep train", "--trace"});
  EXPECT_EQ(incomplete.find("json.exception"), std::string::npos) << incomplete;
  expect_parts(message_of<IoError>([] { read_step_trace("/nowhere/trace.json"); }),
               {"/nowhere/trace.json", "No such file"});
  expect_parts(message_of<IoError>([] { read_step_trace("/proc"); }), {"/proc", "Is a directory"});
}

// A file with the trace of one rank with one thread, and predictions from it.
class Prediction : public testing::Test {
 protected:
  Prediction() {
    TracedRun run = run_of_two_buckets();
    run.threads = 1;
    const std::string text = trace_text(6, run, 0, 0);
    for (const char* name : {"trace.json", "a@b.json"}) folder_.write(name, Bytes(text.begin(), text.end()));
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  // The message of the E that the flags cause. device_step: the trace if it is empty.
  template <typename E>
  std::string refusal(SimulationFlags flags, const std::vector<std::string>& settings = {}) const {
    if (flags.device_step.empty()) flags.device_step = path("trace.json");
    std::vector<std::string> overrides = {"train.batch=8"};
    overrides.insert(overrides.end(), settings.begin(), settings.end());
    const Config config = load_config("fashion_mnist_cnn", overrides);
    return message_of<E>([&] {
      require_ranks(flags);
      const PlanSimulation simulation(flags, config);
    });
  }

  TemporaryFolder folder_;
};

TEST_F(Prediction, ConflictingFlagsAreNamed) {
  EXPECT_EQ(refusal<Error>({.ranks = 4}), "");
  const std::pair<SimulationFlags, std::vector<std::string>> cases[] = {
      {{.ranks = 6, .nodes = 4, .link = "1GB/s"}, {"--ranks 6", "--nodes 4"}},
      {{.ranks = 4, .nodes = 4, .link = "0GB/s"}, {"--link \"0GB/s\""}},
      {{.ranks = 4, .nodes = 4}, {"--nodes", "--link", "--fit"}},
      {{.ranks = 4, .link = "1GB/s"}, {"--link 1GB/s", "--nodes"}},
      {{.link = "1GB/s"}, {"--link", "--ranks"}},
      {{.cores = 8}, {"--cores", "--ranks"}},
      {{.ranks = 4, .device_step = "20ms", .fits = {path("trace.json")}}, {"--device-step 20ms", "--fit"}},
      {{.ranks = 4, .device_step = "20ms", .cores = 8}, {"--cores 8", "--device-step 20ms"}},
      {{.ranks = 4, .device_step = "20"}, {"20ms"}},
      {{.ranks = 4, .device_step = "0ms"}, {"--device-step 0ms"}},
      {{.ranks = 4, .node_link = "8x9GB/s"}, {"--node-link"}},
      {{.ranks = 4, .gpus = {"h100", "l4"}}, {"--gpu", "--ranks"}},
      {{.ranks = 4, .gpus = {"all"}}, {"--gpu", "--ranks"}}};
  for (const auto& [flags, parts] : cases) expect_parts(refusal<UsageError>(flags), parts);
}

TEST_F(Prediction, TraceOfAnotherRunIsRefused) {
  const SimulationFlags flags{.ranks = 4};
  expect_parts(refusal<ConfigError>(flags, {"train.threads=3"}),
               {path("trace.json"), "train.threads = 1", " 3"});
  expect_parts(refusal<ConfigError>(flags, {"train.batch=16"}),
               {path("trace.json"), "train.batch = 8", " 16"});
  expect_parts(refusal<ConfigError>({.ranks = 4, .nodes = 4, .link = "1GB/s"}, {"comm.between_nodes=mpi"}),
               {"comm.between_nodes = mpi", "comm.between_nodes=halving"});
  // Reads the whole path, and then finds that one rank measures no link.
  for (const char* speed : {"", "@1Gb/s"})
    expect_parts(refusal<ConfigError>({.ranks = 4, .fits = {path("a@b.json") + speed}}), {"1 rank"});
}

}  // namespace
}  // namespace lockstep
