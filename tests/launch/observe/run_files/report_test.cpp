// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <regex>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/file_text.h"
#include "launch/observe/run_files/report_json.h"
#include "tests/core/file_size_limit.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using nlohmann::json;

class ReportTest : public testing::Test {
 protected:
  ReportOptions options(bool terminal) const {
    return {.terminal = terminal,
            .directory = directory_ / "run",
            .epochs = 5,
            .steps_per_epoch = 937,
            .total_steps = 5 * 937,
            .global_batch = 128};
  }
  std::vector<std::string> metrics() const {
    return lines_of(file_text(directory_ / "run" / "metrics.jsonl"));
  }

  TemporaryFolder temporary_{"report"};
  std::filesystem::path directory_ = temporary_.path() / "made";
};

EpochReport example() {
  EpochReport report{EpochRecord{.epoch = 2,
                                 .step = 1874,
                                 .steps = 937,
                                 .train_loss = 0.312,
                                 .learning_rate = 0.05,
                                 .samples_per_second = 12345.4,
                                 .train_seconds = 10,
                                 .skipped_steps = 3,
                                 .loss_scale = 4096,
                                 .evaluation_seconds = 1.5,
                                 .evaluation = Evaluation{.loss = 0.298, .accuracy = 0.8931}}};
  report.account.seconds = {0.01, 3.1, 6.02, 0.11, 0.2, 0, 0, 0.56};
  report.processor = {.compute = 17, .communication = 1.5, .data = 0.5};
  report.busy = 0.91;
  report.busy_by_rank = {0.93, 0.89};
  report.peak = 0.344;
  return report;
}

// 100 steps of two ranks.
EpochReport example_of_ranks() {
  EpochReport report = example();
  LedgerSums sums{.steps = 100,
                  .backward = 6,
                  .exposed = 0.11,
                  .exposed_starved = 0.01,
                  .exposed_late = 0.02,
                  .exposed_wire = 0.07,
                  .exposed_rest = 0.01,
                  .hidden = 0.99};
  sums.buckets.push_back({.lead = 3,
                          .starved = 0.01,
                          .late = 0.5,
                          .wire = 0.5,
                          .exposed = 0.1,
                          .hidden = 0.99,
                          .sent_bytes = 1e9});
  report.communication = EpochCommunication{
      .mine = sums,
      .by_rank =
          {{.exposed = 0.11, .hidden = 0.99, .waited = 0.5, .wire = 0.5, .starved = 0.01, .no_core = 0.3},
           {.exposed = 0.01, .hidden = 0.59, .waited = 0.1, .wire = 0.5}},
      .bucket_bytes = {5e6},
      .exposed_by_bucket = {{0.1000004}, {0.01}},
      .sent_bytes = 1e9};
  report.advice =
      Advice{.cause = "late_rank",
             .text = "rank 1 is late: the others wait 4.0 ms a step for it; find out what slows it",
             .samples_per_second = 13000};
  return report;
}

template <typename Action>
std::string output_of(const Action& action) {
  testing::internal::CaptureStdout();
  action();
  return testing::internal::GetCapturedStdout();
}

StepRecord step_of(std::int64_t epoch, std::int64_t step, std::int64_t steps, double loss = 0.4567,
                   double samples_per_second = 1234567.8) {
  return {.epoch = epoch,
          .epoch_step = step,
          .epoch_steps = steps,
          .step = (epoch - 1) * steps + step,
          .loss = loss,
          .samples_per_second = samples_per_second};
}

void run_epoch(Report& report, std::int64_t epoch, std::int64_t steps) {
  for (std::int64_t step = 1; step <= steps; ++step) report.step(step_of(epoch, step, steps));
}

TEST_F(ReportTest, SummaryFits100Columns) {
  Report report(options(false));
  const std::string output = output_of([&] { report.epoch(example()); });
  EXPECT_EQ(std::ranges::count(output, '\n'), 1) << output;
  EXPECT_TRUE(output.starts_with("epoch 2/5 ")) << output;
  EXPECT_LE(output.size(), 100u) << output;
  expect_parts(output,
               {"busy 91 %", "peak 34 %", "loss 0.312", "test loss 0.298", "89.31 %", "12,345 samples/s"});
}

TEST_F(ReportTest, SeveralRanksGetCommunicationAndAdviceLines) {
  Report report(options(false));
  EpochReport of_ranks = example_of_ranks();
  const std::vector<std::string> lines = lines_of(output_of([&] { report.epoch(of_ranks); }));
  ASSERT_EQ(lines.size(), 3u);
  expect_parts(lines[1], {"11.0 ms", "90.0 %", "6.0 ms", "1.7 GB/s", "rank 1", "4.0 ms"});
  expect_parts(lines[2], {of_ranks.advice->text});
  of_ranks.communication->sent_bytes = 6000;
  expect_parts(output_of([&] { report.epoch(of_ranks); }), {"10.0 kB/s"});
}

TEST_F(ReportTest, HeaderShowsEpochsStepsAndBatch) {
  Report report(options(false));
  const std::string output = output_of([&] { report.header("Lockstep: cnn, 2 ranks on cpu"); });
  EXPECT_TRUE(output.starts_with("Lockstep: cnn, 2 ranks on cpu\n")) << output;
  expect_parts(output,
               {"5 epochs", "937 steps", "batch 128", (directory_ / "run" / "metrics.jsonl").string()});
  EXPECT_EQ(output.find("data.tail"), std::string::npos) << "every sample is used once: " << output;
}

TEST_F(ReportTest, HeaderShowsAnEarlyEnd) {
  ReportOptions cut = options(false);
  cut.epochs = 2;
  cut.total_steps = 1000;
  expect_parts(output_of([&] { Report(cut).header("x"); }), {"1000 steps", "2 epochs", "937", "batch 128"});
  cut.epochs = cut.steps_per_epoch = cut.total_steps = 1;
  const std::string shortest = output_of([&] { Report(cut).header("x"); });
  expect_parts(shortest, {"1 epoch", "1 step"});
  for (const char* plural : {"1 epochs", "1 steps"})
    EXPECT_EQ(shortest.find(plural), std::string::npos) << shortest;
}

TEST_F(ReportTest, HeaderShowsDroppedAndRepeatedSamples) {
  const std::tuple<std::int64_t ReportOptions::*, std::int64_t, const char*> cases[] = {
      {&ReportOptions::dropped_samples, 1, "1 sample"},
      {&ReportOptions::repeated_samples, 50, "50 samples"},
      {&ReportOptions::last_batch_samples, 28, "28 samples"}};
  for (const auto& [number, value, samples] : cases) {
    ReportOptions tail = options(false);
    tail.*number = value;
    const std::string output = output_of([&] { Report(tail).header("x"); });
    EXPECT_TRUE(std::regex_search(output, std::regex(fmt::format("\\b{}\\b", samples)))) << output;
    expect_parts(output, {"data.tail"});
  }
}

TEST_F(ReportTest, PlainOutputHasTenLinesAnEpochAndNoControlCharacters) {
  Report report(options(false));
  const std::string output = output_of([&] { run_epoch(report, 2, 937); });
  const std::vector<std::string> lines = lines_of(output);
  ASSERT_EQ(lines.size(), 10u) << output;
  expect_parts(lines.front(), {"epoch 2/5", " 94/937", "loss 0.457", "1,234,568 samples/s"});
  expect_parts(lines.back(), {"epoch 2/5", "937/937"});
  EXPECT_TRUE(std::regex_search(lines.back(), std::regex(R"(\d:\d\d\b)")))
      << "the remaining time is missing: " << output;
  EXPECT_EQ(output.find_first_of("\r\x1b["), std::string::npos) << output;
}

TEST_F(ReportTest, PlainOutputOfAShortEpochHasALineForEachStep) {
  ReportOptions short_run = options(false);
  short_run.steps_per_epoch = 3;
  short_run.total_steps = 15;
  Report report(short_run);
  EXPECT_EQ(lines_of(output_of([&] { run_epoch(report, 1, 3); })).size(), 3u);
}

TEST_F(ReportTest, BarIsRedrawnInPlaceAndFitsTheLine) {
  ReportOptions many = options(true);
  Report report(many);
  std::string output = output_of([&] { run_epoch(report, 1, 937); });
  EXPECT_EQ(output.find('\n'), std::string::npos);
  EXPECT_TRUE(output.starts_with('\r'));
  std::ranges::replace(output, '\r', '\n');
  const std::vector<std::string> drawn = lines_of(output.substr(1));
  ASSERT_GE(drawn.size(), 2u) << "the first and the last step are always drawn";
  for (const std::string& line : drawn) {
    ASSERT_TRUE(line.starts_with("\x1b[K")) << line;
    EXPECT_LE(line.size() - 3, 79u) << line;
  }
  EXPECT_NE(drawn.front().find("epoch 1/5  [...."), std::string::npos) << drawn.front();
  expect_parts(drawn.back(), {"####]", "937/937", "loss 0.457", "1,234,568 samples/s"});
  EXPECT_EQ(drawn.back().find('.', drawn.back().find('[', 3)), drawn.back().find("0.457") + 1)
      << "a full bar";
}

TEST_F(ReportTest, BarFitsTheLineWithLargeNumbers) {
  ReportOptions huge = options(true);
  huge.epochs = 1'000'000'000'000;
  huge.total_steps = 1'000'000'000'000'000'000;
  Report report(huge);
  const std::string output =
      output_of([&] { report.step(step_of(123'456'789'012, 1'000'000, 1'000'000, 1e-30, 1e21)); });
  EXPECT_LE(output.size(), 4u + 79u) << output;
  EXPECT_NE(output.find("1000000/1000000"), std::string::npos) << output;
}

TEST_F(ReportTest, SummaryReplacesTheBar) {
  Report report(options(true));
  const std::string output = output_of([&] {
    report.step(step_of(2, 937, 937));
    report.epoch(example());
  });
  const std::string last = output.substr(output.rfind("\r\x1b[K"));
  expect_parts(last, {"\r\x1b[Kepoch 2/5 ", "busy 91 %", "loss 0.312", "12,345 samples/s"});
  EXPECT_TRUE(last.ends_with('\n')) << output;
}

TEST_F(ReportTest, LineReplacesTheBarAndCommandIsNotWrapped) {
  Report report(options(true));
  std::string command = "lockstep train";
  for (int i = 0; i < 20; ++i) command += " --set train.epochs=1";
  const std::string output = output_of([&] {
    report.step(step_of(2, 1, 937));
    report.line("stopped");
    report.command(command);
  });
  EXPECT_TRUE(output.ends_with("\r\x1b[Kstopped\n" + command + '\n')) << output;
}

TEST_F(ReportTest, LossesHaveThreeDigits) {
  Report report(options(false));
  const std::pair<double, const char*> cases[] = {{0.4567, " loss 0.457  "}, {1.5, " loss 1.50  "},
                                                  {99.94, " loss 99.9  "},   {99.96, " loss 100  "},
                                                  {123.4, " loss 123  "},    {1234.5, " loss 1.23e+03  "}};
  for (const auto& each : cases)
    expect_parts(output_of([&] { report.step(step_of(1, 937, 937, each.first)); }), {each.second});
}

// Training ends after 3 steps, although it has 5 epochs of 937.
TEST_F(ReportTest, TimeLeftCountsOnlyStepsThatWillRun) {
  ReportOptions cut = options(false);
  cut.total_steps = 3;
  Report report(cut);
  const std::string output = output_of([&] {
    for (std::int64_t step = 1; step <= 3; ++step) report.step(step_of(1, step, 3, 1, 1));
  });
  expect_parts(lines_of(output).back(), {"3/3", "loss 1.00", "1 samples/s", "0:00"});
}

// Paths are exempt, because users copy them.
TEST_F(ReportTest, EveryLineFitsATerminal) {
  EpochReport large = example_of_ranks();
  large.epoch = 1234;
  large.samples_per_second = 12'345'678;
  large.account[Phase::idle] = 100;
  for (const int columns : {40, 80, 132}) {
    ReportOptions narrow = options(true);
    narrow.columns = columns;
    narrow.epochs = 2000;
    Report report(narrow);
    std::string output = output_of([&] {
      report.header(
          "Lockstep 0.1.0: fashion_mnist_resnet20 on cuda:0 (16 threads per rank), 128 ranks x batch 256 x "
          "accumulation 8");
      run_epoch(report, 1, 937);
      report.epoch(large);
    });
    std::ranges::replace(output, '\r', '\n');
    std::size_t longest = 0;
    for (std::string line : lines_of(output)) {
      if (line.starts_with("\x1b[K")) line.erase(0, 3);
      if (line.find('/' + std::string("metrics.jsonl")) != std::string::npos) continue;
      EXPECT_LT(line.size(), static_cast<std::size_t>(columns)) << line;
      longest = std::max(longest, line.size());
    }
    EXPECT_GT(longest, static_cast<std::size_t>(columns) * 3 / 4) << "lines are wrapped too early";
    EXPECT_NE(output.find(" 12,345,678 samples/s\n"), std::string::npos)
        << "a value and its unit stay together: " << output;
  }
}

TEST_F(ReportTest, MetricsHaveEveryFieldAndAreFlushedLineByLine) {
  Report report(options(false));
  output_of([&] {
    report.epoch(example());
    ASSERT_EQ(metrics().size(), 1u) << "readable during the run";
    report.epoch(example());
  });
  ASSERT_EQ(metrics().size(), 2u);
  const json line = json::parse(metrics().front());
  EXPECT_EQ(line["epoch"], 2);
  EXPECT_EQ(line["steps"], 1874);
  EXPECT_EQ(line["train_loss"], 0.312);
  EXPECT_EQ(line["test_loss"], 0.298);
  EXPECT_EQ(line["test_accuracy"], 0.8931);
  EXPECT_EQ(line["samples_per_second"], 12345.4);
  EXPECT_EQ(line["learning_rate"], 0.05);
  EXPECT_EQ(line["train_seconds"], 10);
  EXPECT_EQ(line["evaluation_seconds"], 1.5);
  EXPECT_EQ(line["skipped_steps"], 3);
  EXPECT_EQ(line["loss_scale"], 4096);
  EXPECT_EQ(line["account"], json::parse(R"({"data_wait": 0.01, "forward": 3.1, "backward": 6.02,
      "exposed_communication": 0.11, "optimizer": 0.2, "idle": 0.0, "device_wait": 0.0, "rest": 0.56})"));
  EXPECT_EQ(line["account_steps"], 937);
  EXPECT_EQ(line["processor"], json::parse(R"({"compute": 17.0, "communication": 1.5, "data": 0.5})"));
  EXPECT_DOUBLE_EQ(line["busy"], 0.91);
  EXPECT_EQ(line["busy_by_rank"], json::parse("[0.93, 0.89]"));
  EXPECT_EQ(line["peak"], 0.344);
  EXPECT_EQ(line.size(), 17u);
}

TEST_F(ReportTest, DeviceFiguresArePartOfTheLine) {
  EpochReport watched = example();
  watched.device.emplace().sums.add(DeviceFigures{.utilization = 75, .clock_reasons = 0x40});
  const json line = json::parse(json_of(watched).dump());
  EXPECT_EQ(line["device"]["utilization"], 0.75);
  EXPECT_EQ(line["device"]["clock_reasons"], json::parse(R"(["hw_thermal_slowdown"])"));
}

TEST_F(ReportTest, MetricsAreReportedWithTheirCost) {
  EpochReport of_metrics = example();
  const std::vector<ClassScore> scores = class_scores({4, 2, 3, 3, 3, 2});
  of_metrics.evaluation->metrics =
      EvaluationMetrics{.top5 = 0.931, .f1_macro = macro_f1(scores), .by_class = scores};
  of_metrics.metrics_seconds = 0.5;
  of_metrics.evaluations_within = 3;
  of_metrics.within_seconds = 1;
  Report report(options(false));
  const std::string output = output_of([&] { report.epoch(of_metrics); });
  const std::vector<std::string> lines = lines_of(output);
  ASSERT_EQ(lines.size(), 4u) << output;
  expect_parts(lines[0], {"89.31 %", "12,345 samples/s"});
  expect_parts(lines[1], {"top5 93.10 %", "f1 0.829"});
  expect_parts(lines[2], {" 4.3 %", "top5", "f1"});
  expect_parts(lines[3], {" 13.0 %", "run.metrics_every", " 8.7 %"});
  const json line = json::parse(metrics().front());
  EXPECT_EQ(line["top5"], 0.931);
  EXPECT_EQ(line["metrics_seconds"], 0.5);
  EXPECT_EQ(line["evaluations_within"], json::parse(R"({"count": 3, "seconds": 1.0})"));
  EXPECT_EQ(line.size(), 17u + 7u);
}

TEST_F(ReportTest, EvaluationsWithinAnEpochHaveSeparateLines) {
  Report report(options(false));
  const EvaluationRecord within{.epoch = 1, .step = 20, .evaluation = {.loss = 0.5, .accuracy = 0.75}};
  const std::filesystem::path path = directory_ / "run" / "evaluations.jsonl";
  EXPECT_EQ(output_of([&] {
              report.evaluation(within);
              report.evaluation(within);
            }),
            "");
  std::ifstream file(path);
  std::string text;
  ASSERT_TRUE(std::getline(file, text));
  EXPECT_EQ(text, json_of(within).dump());
  EXPECT_TRUE(report.problems().empty());
  {
    const FileSizeLimit limit(std::filesystem::file_size(path) + 10);
    output_of([&] { report.evaluation(within); });
  }
  ASSERT_EQ(report.problems().size(), 1u);
  expect_parts(report.problems()[0], {path.string(), "1 line", "File too large"});
}

TEST_F(ReportTest, UnknownPeakIsOmitted) {
  EpochReport unknown = example();
  unknown.peak.reset();
  EXPECT_TRUE(json::parse(json_of(unknown).dump())["peak"].is_null());
  Report report(options(false));
  const std::string output = output_of([&] { report.epoch(unknown); });
  expect_parts(output, {"busy 91 %", "loss 0.312"});
  EXPECT_EQ(output.find("peak"), std::string::npos) << output;
}

TEST_F(ReportTest, StepsHaveSeparateLines) {
  StepLine of_steps{.epoch = 2, .step = 100, .steps = 50, .loss = 0.5, .learning_rate = 0.1};
  of_steps.samples_per_second = 1234.5;
  of_steps.busy = 0.75;
  of_steps.gradient_norm = 3.5;
  of_steps.loss_scale = 256;
  of_steps.account[Phase::forward] = 2.5;
  Report report(options(false));
  EXPECT_EQ(output_of([&] { report.series(of_steps); }), "") << "lines of steps are not printed";
  std::ifstream file(directory_ / "run" / "steps.jsonl");
  std::string text;
  ASSERT_TRUE(std::getline(file, text));
  json line = json::parse(text);
  EXPECT_GT(line["time"], 1.7e9);
  line.erase("time");
  EXPECT_EQ(
      line,
      json::parse(
          R"({"epoch": 2, "step": 100, "steps": 50, "loss": 0.5, "gradient_norm": 3.5, "learning_rate": 0.1,
      "loss_scale": 256.0, "samples_per_second": 1234.5, "busy": 0.75, "peak": null,
      "evaluation_seconds": 0.0, "without_core_seconds": 0.0,
      "account": {"data_wait": 0.0, "forward": 2.5, "backward": 0.0, "exposed_communication": 0.0,
      "optimizer": 0.0, "idle": 0.0, "device_wait": 0.0, "rest": 0.0}})"));
}

TEST_F(ReportTest, MetricsOfSeveralRanksIncludeCommunication) {
  const json line = json::parse(json_of(example_of_ranks()).dump());
  EXPECT_EQ(line.size(), 18u);
  const json& told = line["communication"];
  EXPECT_EQ(told["steps"], 100);
  EXPECT_EQ(told["exposed_seconds"], 0.11);
  EXPECT_EQ(told["exposed"],
            json::parse(R"({"starved_seconds": 0.01, "late_seconds": 0.02, "wire_seconds": 0.07,
      "rest_seconds": 0.01})"));
  EXPECT_EQ(told["hidden_seconds"], 0.99);
  EXPECT_NEAR(told["overlap"], 0.9, 1e-9);
  EXPECT_NEAR(told["wire_seconds"], 0.6, 1e-9);
  EXPECT_NEAR(told["wire_bytes_per_second"], 1e9 / 0.6, 1);
  EXPECT_NEAR(told["late_seconds"], 0.4, 1e-9);
  EXPECT_EQ(told["late_rank"], 1);
  ASSERT_EQ(told["by_rank"].size(), 2u);
  EXPECT_EQ(told["by_rank"][0], json::parse(R"({"exposed_seconds": 0.11, "hidden_seconds": 0.99,
      "waited_seconds": 0.5, "wire_seconds": 0.5, "starved_seconds": 0.01, "no_core_seconds": 0.3,
      "exposed_seconds_by_bucket": [0.1]})"))
      << "written to the microsecond";
  ASSERT_EQ(told["by_bucket"].size(), 1u);
  EXPECT_EQ(told["by_bucket"][0], json::parse(R"({"bytes": 5e6, "lead_seconds": 3.0, "starved_seconds": 0.01,
      "late_seconds": 0.5, "wire_seconds": 0.5, "exposed_seconds": 0.1, "hidden_seconds": 0.99})"));
  EXPECT_EQ(told["advice"]["cause"], "late_rank");
  EXPECT_EQ(told["advice"]["samples_per_second"], 13000);
  EpochReport silent = example_of_ranks();
  silent.advice.reset();
  silent.communication->by_rank[1].waited = 0.5;
  const json nothing = json::parse(json_of(silent).dump())["communication"];
  EXPECT_TRUE(nothing["advice"].is_null());
  EXPECT_TRUE(nothing["late_rank"].is_null());
}

TEST_F(ReportTest, LinesAreReadAsTheyWereWritten) {
  EpochReport report = example_of_ranks();
  report.communication->sent_bytes = 0;  // only written as a rate
  report.steps_by_rank = {120, 61};
  report.resident_bytes_by_rank = {3'000'000'000, 1};
  report.stragglers = {{.rank = 1, .host = "b", .since_step = 3, .found_step = 9, .seconds = 0.5}};
  report.evaluation->metrics = EvaluationMetrics{.top5 = 0.5,
                                                 .f1_macro = 0.25,
                                                 .by_class = {{.recall = 0.5}, {}},
                                                 .samples_by_class = {3, 0},
                                                 .confusion = {1, 2, 3, 4},
                                                 .classes = 2};
  report.evaluations_within = 3;
  report.more_ranks = MoreRanks{.ranks = 4, .samples_per_second = 2e4, .text = "more"};
  const std::string line = json_of(report).dump();
  EXPECT_EQ(json_of(record_from<EpochReport>(json::parse(line))).dump(), line);
  const std::string step = json_of(StepLine{.step = 7, .loss = std::nan(""), .peak = 0.5}).dump();
  EXPECT_EQ(json_of(record_from<StepLine>(json::parse(step))).dump(), step);
  const std::string within = json_of(EvaluationRecord{.step = 7, .evaluation = *report.evaluation}).dump();
  EXPECT_EQ(json_of(record_from<EvaluationRecord>(json::parse(within))).dump(), within);
}

TEST_F(ReportTest, RingListsTheStepsOfEachRank) {
  EpochReport ring = example();
  ring.steps_by_rank = {120, 61, 119};
  Report report(options(false));
  expect_parts(output_of([&] { report.epoch(ring); }), {"120, 61, 119\n"});
  EXPECT_EQ(json::parse(json_of(ring).dump())["steps_by_rank"], json::parse("[120, 61, 119]"));
}

TEST_F(ReportTest, NumbersThatAreNotFiniteBecomeNull) {
  EpochReport report = example();
  report.train_loss = std::nan("");
  report.evaluation->loss = std::numeric_limits<double>::infinity();
  const json line = json::parse(json_of(report).dump());
  EXPECT_TRUE(line["train_loss"].is_null());
  EXPECT_TRUE(line["test_loss"].is_null());
  Report printed(options(false));
  expect_parts(output_of([&] { printed.epoch(report); }), {"loss nan", "loss inf"});
}

TEST_F(ReportTest, BytesThatAreNotUtf8AreEscaped) {
  Report report(options(false));
  report.straggler({.rank = 1, .host = "node\xff"});
  output_of([&] { report.epoch(example()); });
  EXPECT_EQ(json::parse(metrics().front())["stragglers"][0]["host"], "node\\xff");
}

// Values that were not measured are omitted, neither zero nor null.
TEST_F(ReportTest, EpochWithoutEvaluationHasNoTestFigures) {
  EpochReport epoch = example();
  epoch.evaluation.reset();
  epoch.evaluation_seconds = 0;
  Report report(options(false));
  const std::string printed = output_of([&] { report.epoch(epoch); });
  expect_parts(printed, {"loss 0.312", "12,345 samples/s"});
  EXPECT_EQ(printed.find("test"), std::string::npos) << printed;
  const json line = json::parse(metrics().front());
  EXPECT_FALSE(line.contains("test_loss") || line.contains("test_accuracy")) << line;
  EXPECT_EQ(line["train_loss"], 0.312);
}

TEST_F(ReportTest, SilentRanksPrintAndCreateNothing) {
  ReportOptions silent = options(true);
  silent.speaks = false;
  const std::string output = output_of([&] {
    Report report(silent);
    report.header("x");
    report.line("x");
    run_epoch(report, 1, 937);
    report.epoch(example());
  });
  EXPECT_EQ(output, "");
  EXPECT_FALSE(std::filesystem::exists(directory_));
}

TEST_F(ReportTest, ErrorsNameThePath) {
  std::filesystem::create_directories(directory_);
  const auto error = [&] { return message_of<IoError>([&] { Report report(options(false)); }); };
  std::ofstream(directory_ / "run") << "a file where the directory should be";
  expect_parts(error(), {(directory_ / "run").string()});
  std::filesystem::remove(directory_ / "run");
  std::filesystem::create_directories(directory_ / "run" / "metrics.jsonl");
  expect_parts(error(), {(directory_ / "run" / "metrics.jsonl").string()});
}

// Training continues, and so do metrics and TensorBoard's events when there is space again. No line or event
// is ever incomplete.
TEST_F(ReportTest, FullDiskOmitsOnlyTheEpochsItLasts) {
  Report report(options(false));
  const std::filesystem::path events =
      std::filesystem::directory_iterator(directory_ / "run" / "tensorboard")->path();
  std::uintmax_t event_bytes = 0;
  output_of([&] {
    EpochReport line = example();
    report.epoch(line);
    EXPECT_TRUE(report.problems().empty());
    event_bytes = std::filesystem::file_size(events);
    {
      const FileSizeLimit limit(std::filesystem::file_size(directory_ / "run" / "metrics.jsonl") + 10);
      for (line.epoch = 3; line.epoch <= 4; ++line.epoch) report.epoch(line);
    }
    EXPECT_EQ(std::filesystem::file_size(events), event_bytes);
    report.epoch(line);
  });
  EXPECT_GT(std::filesystem::file_size(events), event_bytes);
  ASSERT_EQ(report.problems().size(), 2u);
  expect_parts(report.problems()[0],
               {(directory_ / "run" / "metrics.jsonl").string(), "3, 4", "File too large"});
  expect_parts(report.problems()[1], {events.string(), "2 events", "File too large"});
  ASSERT_EQ(metrics().size(), 2u);
  EXPECT_EQ(json::parse(metrics()[0])["epoch"], 2);
  EXPECT_EQ(json::parse(metrics()[1])["epoch"], 5);
}

TEST_F(ReportTest, EventFileThatCannotBeCreatedIsAProblem) {
  std::filesystem::create_directories(directory_ / "run");
  std::ofstream(directory_ / "run" / "tensorboard") << "a file where the directory should be";
  Report report(options(false));
  output_of([&] { report.epoch(example()); });
  ASSERT_EQ(report.problems().size(), 1u);
  expect_parts(report.problems()[0], {(directory_ / "run" / "tensorboard").string()});
  EXPECT_EQ(metrics().size(), 1u);
}

TEST_F(ReportTest, IndentedMetricsFitANarrowTerminal) {
  EpochReport epoch = example();
  epoch.evaluation->metrics = EvaluationMetrics{.top5 = 0.931, .f1_macro = 0.871};
  ReportOptions narrow = options(true);
  narrow.columns = 23;  // "top5 93.10 %  f1 0.871" has 22
  Report report(narrow);
  const std::string output = output_of([&] { report.epoch(epoch); });
  expect_in_order(output, {"  top5 93.10 %\n", "f1 0.871\n"});
  for (const std::string& line : lines_of(output))
    if (line.starts_with("  ")) {
      EXPECT_LT(line.size(), 23u) << line;
    }
}

}  // namespace
}  // namespace lockstep
