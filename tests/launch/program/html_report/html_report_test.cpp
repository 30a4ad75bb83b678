// SPDX-License-Identifier: Apache-2.0
//
// The page of `lockstep report`: the files it reads, their evaluation, and that text of files never becomes
// markup. tests/launch/program/report_page_test.py checks complete pages.
#include <cmath>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/observe/charts/markup.h"
#include "launch/program/html_report/charts/chart.h"
#include "launch/program/html_report/files/run_summary.h"
#include "launch/program/html_report/html.h"
#include "launch/program/html_report/layer_page.h"
#include "launch/program/html_report/page.h"
#include "launch/program/html_report/run_sections.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr const char* kEpoch =
    R"({"epoch":1,"steps":100,"train_loss":0.5,"test_loss":0.6,"test_accuracy":0.8,"samples_per_second":1000,)"
    R"("learning_rate":0.1,"train_seconds":10,"evaluation_seconds":1,"busy":0.75,"peak":0.25,)"
    R"("account":{"data_wait":1,"forward":2,"backward":5,"exposed_communication":2},"of_tomorrow":[{}]})"
    "\n";

std::string step_line(int step, double loss = 0.5) {
  return fmt::format(
      R"({{"step":{},"epoch":1,"time":1.7e9,"loss":{},"account":{{"forward":0.25,"idle":0.75}}}})"
      "\n",
      step, loss);
}

class RunFolders : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    folder_.write(name, Bytes(text.begin(), text.end()));
  }
  RunFolder read(const std::string& run) const { return read_run_folder(folder_.path() / run); }
  std::string page_of(const std::string& run) const {
    const RunFolder found = read(run);
    return report_page({&found, 1});
  }

  TemporaryFolder folder_;
};

bool page_has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool page_matches(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

std::size_t times_on_page(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// The sentence on how busy the devices were; "" if the page has none.
std::string verdict_on(const std::string& page) {
  const std::size_t begin = page.find("<p class=\"verdict\">");
  return begin == std::string::npos ? "" : page.substr(begin, page.find("</p>", begin) - begin);
}

constexpr const char* kHeatTable = "<table class=\"heat";  // confusions, or exposed time by rank and bucket

TEST(Markup, IsEscaped) {
  EXPECT_EQ(in_markup("<b a=\"1\">&amp;"), "&lt;b a=&quot;1&quot;&gt;&amp;amp;");
  EXPECT_EQ(in_markup("a\x01\n\x1b[0m\xff"), "a   [0m\\xff");
  EXPECT_EQ(in_markup("\xc3\xa9"), "\xc3\xa9");
}

TEST_F(RunFolders, MissingFilesAreListed) {
  write("a/metrics.jsonl", kEpoch);
  const RunFolder run = read("a");
  EXPECT_EQ(run.absent, (std::vector<std::string>{"steps.jsonl", "events.jsonl", "config.toml", "run.json",
                                                  "monitor.csv"}));
  const std::string page = report_page({&run, 1});
  const std::string notes = absent_section(run);
  EXPECT_TRUE(page_has(page, notes));
  EXPECT_EQ(times_on_page(notes, "<p class=\"note\">"), run.absent.size());
  expect_parts(notes, run.absent);
  EXPECT_TRUE(page_has(page, "<b>75.0 %</b>")) << "busy";
  EXPECT_TRUE(page_has(page, "<b>25.0 %</b>")) << "peak";
  EXPECT_LT(page.find("<b>75.0 %</b>"), page.find("<svg"));
  expect_parts(verdict_on(page), {phase_text(Phase::exposed_communication), "20.0 %"});
  EXPECT_TRUE(page_has(page, "comm.cross_barrier")) << "the proposed change";
}

TEST_F(RunFolders, LargeMonitorFileIsOmitted) {
  write("a/metrics.jsonl", kEpoch);
  write("a/monitor.csv", "timestamp, utilization.gpu [%]\n");
  std::filesystem::resize_file(folder_.path() / "a" / "monitor.csv", std::uintmax_t{2} << 30);
  const RunFolder run = read("a");
  EXPECT_EQ(run.epochs.size(), 1u);
  EXPECT_TRUE(run.monitor.empty());
  EXPECT_TRUE(page_has(absent_section(run), "monitor.csv exceeds 1 GiB"));
}

TEST_F(RunFolders, NewRunHasAPage) {
  write("a/metrics.jsonl", "");
  EXPECT_EQ(verdict_on(page_of("a")), "") << "no step account was written yet";
  write("a/steps.jsonl", step_line(10) + step_line(20));
  write("a/monitor.csv", "timestamp, util");
  write("a/events.jsonl", "");
  const std::string page = page_of("a");
  EXPECT_TRUE(page_has(page, "20 steps"));
  EXPECT_FALSE(page_has(page, "<b>30.0 %</b>"));
  write("a/steps.jsonl", R"({"step":10,"epoch":1,"loss":0.5,"peak":0.3,"account":{"forward":1}})"
                         "\n");
  EXPECT_TRUE(page_has(page_of("a"), "<b>30.0 %</b>")) << "peak";
  expect_parts(verdict_on(page), {phase_text(Phase::idle), "75.0 %"});
}

// More ranks than cores: the account shows compute, although the device is not busy.
TEST_F(RunFolders, MissingCoresAreReported) {
  std::string epoch = kEpoch;
  epoch.replace(epoch.find("\"busy\":0.75"), 11, "\"busy\":0.25");
  write("a/metrics.jsonl", epoch);
  const std::string page = page_of("a");
  expect_parts(verdict_on(page), {"25.0 %", "45.0 %"});
  EXPECT_TRUE(page_has(page, "<td class=\"n\">45.0 %</td>")) << "a row of the account";
  epoch.replace(epoch.find("\"busy\":0.25"), 11, "\"busy\":0.25,\"busy_by_rank\":[0.7,0]");
  write("a/metrics.jsonl", epoch);
  EXPECT_FALSE(page_has(page_of("a"), "without a core")) << "only rank 1 lacks one";
}

// The epoch resumed at step 90, and its line has the account of the other ten.
TEST_F(RunFolders, StepsBeforeAResumeCount) {
  const auto line = [](int step, int steps, int seconds) {
    return fmt::format(R"({{"step":{},"steps":{},"epoch":1,"loss":0.5,"account":{{"forward":{}}}}})"
                       "\n",
                       step, steps, seconds);
  };
  write("a/metrics.jsonl",
        R"({"epoch":1,"steps":100,"train_seconds":1,"account":{"forward":1},"account_steps":10})"
        "\n");
  EXPECT_EQ(whole_account(read("a")).steps, 10) << "steps.jsonl is missing";
  write("a/steps.jsonl", line(90, 90, 9) + line(100, 10, 1));
  const RunFolder run = read("a");
  EXPECT_EQ(whole_account(run).steps, 100);
  EXPECT_EQ(whole_account(run).account.total(), 10);
  EXPECT_EQ(headline_of(run).train_seconds, 10);
  const std::string page = report_page({&run, 1});
  expect_parts(page, {"<td class=\"n\">100 ms</td>", "<td class=\"n\">10.0 s</td>"});
}

// run.log_every was 0 from step 110 on.
TEST_F(RunFolders, StepsWithoutALineCount) {
  std::string epochs;
  for (const int epoch : {1, 2, 3})
    epochs += fmt::format(
        R"({{"epoch":{},"steps":{},"train_seconds":10,"account":{{"forward":10}},"account_steps":100}})"
        "\n",
        epoch, 100 * epoch);
  write("a/metrics.jsonl", epochs);
  write("a/steps.jsonl", R"({"step":100,"steps":100,"epoch":1,"account":{"forward":10}})"
                         "\n"
                         R"({"step":110,"steps":10,"epoch":2,"account":{"forward":1}})"
                         "\n");
  const RunFolder run = read("a");
  EXPECT_EQ(whole_account(run).steps, 300);
  EXPECT_EQ(whole_account(run).account.total(), 30);
  EXPECT_EQ(headline_of(run).train_seconds, 30);
}

TEST_F(RunFolders, FolderWithoutMetricsIsRefused) {
  write("a/steps.jsonl", step_line(1));
  for (const char* name : {"a", "nothing"})
    expect_parts(message_of<IoError>([&] { read(name); }),
                 {(folder_.path() / name).string(), "metrics.jsonl"});
}

TEST_F(RunFolders, DamagedFilesAreNamedWithTheirLine) {
  struct Damage {
    std::string place;  // FILE:LINE:
    std::string fact;   // in the message after the place
    std::string text;
  };
  const Damage damages[] = {
      {"metrics.jsonl:2:", "JSON", std::string(kEpoch) + "{\"epoch\":2\n" + kEpoch},
      {"metrics.jsonl:1:", "JSON", "[1]\n"},
      {"metrics.jsonl:1:", " steps", "{\"epoch\":1}\n"},
      {"metrics.jsonl:2:", "JSON", std::string(kEpoch) + std::string(5, '\0') + "\n"},
      {"steps.jsonl:1:", " step", "{\"step\":null}\n"},
      {"steps.jsonl:1:", " step", "{\"step\":1e300}\n"},
      {"steps.jsonl:3:", "JSON", step_line(1) + step_line(2) + "\xff\xfe\n"},
      {"events.jsonl:1:", "JSON", "{'kind':1}\n"},
      {"config.toml:2:", "", "[train]\nbatch = = 3\n"},
      {"run.json:2:", "JSON", "{\n\"ranks\": }"},
      {"run.json:1:", "JSON", "[]"},
      {"run.json:1:", "levels", "{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}"},
      {"monitor.csv:1:", "timestamp", "time, name\n"},
      {"monitor.csv:3:", "2 values",
       "timestamp, a [%]\n2024/01/31 12:00:00.000, 3 %\n2024/01/31 12:00:01.000\n"},
      {"monitor.csv:2:", "2 values", "timestamp, a [%]\nnever, 3 %\n"}};
  for (const auto& [place, fact, text] : damages) {
    write("a/metrics.jsonl", kEpoch);
    const std::string file = place.substr(0, place.find(':')), full = (folder_.path() / "a" / place).string();
    write("a/" + file, text);
    const std::string told = message_of<DataError>([&] { read("a"); });
    const std::size_t at = told.find(full);
    ASSERT_NE(at, std::string::npos) << told << "\n  wanted " << place;
    EXPECT_TRUE(page_has(told.substr(at + full.size()), fact)) << told << "\n  wanted " << fact;
    folder_.remove("a/" + file);
  }
}

TEST_F(RunFolders, IncompleteLastLineIsIgnored) {
  const std::string row = "2024/01/31 12:00:00.000, 3 %\n";
  write("a/metrics.jsonl", std::string(kEpoch) + "{\"epoch\":2,\"ste");
  write("a/steps.jsonl", step_line(1) + step_line(2).substr(0, 20));
  write("a/monitor.csv", "timestamp, a [%]\n" + row + row.substr(0, 10));
  const RunFolder run = read("a");
  EXPECT_EQ(run.epochs.size(), 1u);
  EXPECT_EQ(run.steps.size(), 1u);
  ASSERT_EQ(run.monitor.size(), 1u);
  EXPECT_EQ(run.monitor[0].points.size(), 1u);
  write("a/metrics.jsonl", std::string(kEpoch).substr(0, std::string(kEpoch).size() - 1));
  EXPECT_EQ(read("a").epochs.size(), 1u) << "complete except for the line break";
}

TEST(StepLines, RepeatedStepsHaveTheirNewestLine) {
  const auto steps =
      read_step_lines(step_line(10, 1) + step_line(20, 2) + step_line(30, 3) + step_line(20, 4), "x");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].step, 20);
  EXPECT_EQ(steps[1].loss, 4);
}

TEST(StepLines, RequireOnlyTheStep) {
  const auto steps =
      read_step_lines("{\"step\":1,\"loss\":null,\"gradient_norm\":\"high\",\"account\":[]}\n", "x");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_TRUE(std::isnan(steps[0].loss) && std::isnan(steps[0].gradient_norm) && std::isnan(steps[0].busy));
  EXPECT_EQ(steps[0].account.total(), 0);
}

TEST(MonitorTable, ColumnsAreFoundByTheirHeaders) {
  const std::vector<MonitorSeries> series = read_monitor_table(
      "timestamp, name, pci.bus_id, utilization.gpu [%], memory.used [MiB], temperature.gpu, host.processor "
      "[%]\n"
      "2024/01/31 23:59:30.500, A, 0:01, 37 %, 1234 MiB, 50, 12.5 %\n"
      "2024/01/31 23:59:30.500, A, 0:02, [N/A], 99 MiB, 50, 12.5 %\n"
      "2024/02/01 00:00:30.500, A, 0:01, 39 %, 1235 MiB, 50, 13 %\n",
      "x");
  ASSERT_EQ(series.size(), 4u) << "columns with a unit and numbers, by device";
  EXPECT_EQ(series[0].column, "utilization.gpu");
  EXPECT_EQ(series[0].unit, "%");
  EXPECT_EQ(series[0].device, "0:01");
  ASSERT_EQ(series[0].points.size(), 2u);
  EXPECT_EQ(series[0].points[0].y, 37);
  EXPECT_NEAR(series[0].points[1].x, 1, 1e-9) << "minutes";
  EXPECT_EQ(series[2].device, "0:02");
  EXPECT_EQ(series[3].column, "host.processor");
  EXPECT_EQ(series[3].device, "") << "one host";
  EXPECT_EQ(series[3].points.size(), 2u) << "one point per time, not per device";
}

TEST(Thinning, KeepsFewPointsAndTheBoundsOfMany) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({static_cast<double>(i), std::sin(i)});
  points[54'321].y = 17;
  points[54'322].y = std::nan("");
  const std::vector<ColumnPoint> thin = thinned(points, 100);
  ASSERT_EQ(thin.size(), 100u);
  double high = 0;
  std::size_t count = 0;
  for (const ColumnPoint& column : thin) {
    EXPECT_LE(column.low, column.y);
    EXPECT_LE(column.y, column.high);
    high = std::max(high, column.high);
    count += column.points;
  }
  EXPECT_EQ(high, 17) << "a single spike stays visible";
  EXPECT_EQ(count, 99'999u);
  points.resize(100);
  EXPECT_EQ(thinned(points, 100).size(), 100u);
  EXPECT_EQ(thinned(points, 100)[7].points, 1u);
  EXPECT_TRUE(thinned(std::vector<ChartPoint>{}, 100).empty());
  const std::vector<ChartPoint> one_place(1000, {3, 4});
  EXPECT_EQ(thinned(one_place, 100).size(), 1u);
}

TEST(Thinning, KeepsTheTotalTimeOfAccounts) {
  std::vector<AccountPoint> points;
  for (int i = 1; i <= 12'345; ++i) {
    points.push_back({.step = static_cast<double>(i)});
    points.back().account[Phase::forward] = 1;
    points.back().account[Phase::idle] = i % 3;
  }
  const std::vector<AccountPoint> thin = thinned(std::span<const AccountPoint>(points), 240);
  EXPECT_LE(thin.size(), 240u);
  EXPECT_EQ(thin.back().step, 12'345);
  EXPECT_NEAR(total_of(thin).total(), total_of(points).total(), 1e-6);
}

TEST(Charts, CurvesWithoutFinitePointsHaveNoChart) {
  EXPECT_EQ(to_figure({.title = "x"}), "");
  EXPECT_EQ(to_figure({.title = "x", .curves = {{"y", {{1, std::nan("")}, {1, 1e300}}}}}), "");
  EXPECT_EQ(account_figure("x", {{.step = 1}}), "");
  for (const double value : {0.0, -1e99, 1e99, 1e-99, 1e16}) {
    const std::string figure =
        to_figure({.title = "x", .curves = {{"y", {{value, value}, {value + 1, value}}}}});
    EXPECT_TRUE(page_has(figure, "<svg")) << value;
    EXPECT_LT(figure.size(), 5000u) << value;
    EXPECT_FALSE(page_has(figure, "nan") || page_has(figure, "inf")) << figure;
  }
}

TEST_F(RunFolders, ComparisonStartsWithTheDifferences) {
  for (const char* run : {"a", "b", "c"}) write(std::string(run) + "/metrics.jsonl", kEpoch);
  write("a/config.toml", "[train]\nbatch = 64\nsteps = 9\n[comm]\nbucket_mib = [0.1, 25, 1]\n");
  write("b/config.toml", "[train]\nbatch = 32\nsteps = 9\n");
  write("a/run.json", R"({"ranks": 2, "libraries": {"cuda": "13.0"}})");
  write("b/run.json", R"({"ranks": 2, "libraries": {"cuda": "12.4"}})");
  const std::vector<RunFolder> runs = {read("a"), read("b"), read("c")};
  EXPECT_EQ(run_names(runs), (std::vector<std::string>{"a", "b", "c"}));
  std::string found;
  for (const auto& facts : {&RunFolder::config, &RunFolder::machine})
    for (const FactRow& row : fact_rows(runs, facts))
      found += fmt::format("{}: {}|{}|{}{}\n", row.key, row.values[0], row.values[1], row.values[2],
                           row.differs ? "" : " alike");
  EXPECT_EQ(found,
            "comm.bucket_mib: [0.1, 25, 1]|\u2013|\u2013\ntrain.batch: 64|32|\u2013\ntrain.steps: 9|9|\u2013 "
            "alike\n"
            "ranks: 2|2|\u2013 alike\nlibraries.cuda: 13.0|12.4|\u2013\n")
      << "a run without the file has no differences";
  const std::string page = report_page(runs);
  const std::size_t differs = page.find("<h2>"), figures = page.find("<h2>", differs + 1);
  ASSERT_LT(figures, page.find("<svg"));
  const std::string head = page.substr(differs, figures - differs);
  EXPECT_TRUE(page_has(head, "train.batch") && page_has(head, "libraries.cuda")) << head;
  EXPECT_FALSE(page_has(head, "train.steps")) << head;
}

TEST_F(RunFolders, RunsOfOneNameAreDistinguishedByPath) {
  for (const char* run : {"a/run", "b/run"}) write(std::string(run) + "/metrics.jsonl", kEpoch);
  const std::vector<RunFolder> runs = {read("a/run"), read("b/run")};
  EXPECT_EQ(run_names(runs)[0], (folder_.path() / "a/run").string());
}

TEST_F(RunFolders, LegendShowsWhichCurvesAreDashed) {
  write("a/metrics.jsonl", kEpoch);
  const std::vector<RunFolder> runs(9, read("a"));
  EXPECT_EQ(times_on_page(report_page(runs), "<i class=\"s0 dashed\">"), 2u) << "of speed and of training";
}

TEST_F(RunFolders, TextOfFilesIsEscaped) {
  const std::string evil = R"(</title></svg><script>alert(1)</script><img src=\"http://h/x\" onerror=\"a\">)";
  const std::string name = "<script>alert(2)<";
  const std::string communication = fmt::format(
      R"("communication":{{"steps":3,"by_rank":[{{"exposed_seconds":1}}],"advice":{{"cause":"{0}","key":"{0}","value":"{0}","text":"{0}"}}}},)"
      R"("stragglers":[{{"rank":1,"host":"{0}"}}],"f1_by_class":[0.5],"confusion":[[1]],)",
      evil);
  write(name + "/metrics.jsonl", "{" + communication + std::string(kEpoch).substr(1));
  write(name + "/events.jsonl",
        fmt::format(R"({{"step":1,"kind":"{0}","cause":"{0}","text":"{0}"}})", evil) + "\n");
  write(
      name + "/run.json",
      fmt::format(
          R"({{"host":"{0}","{0}":1,"device":"{0}","started":"{0}","dataset":{{"class_names":["{0}"]}},"planned_bytes":{{"host":{{"{0}":1}}}}}})",
          evil));
  write(name + "/config.toml", fmt::format("[model]\nname = \"{0}\"\n\"{0}\" = 1\n", evil));
  write(name + "/monitor.csv",
        "timestamp, name, <script>x [%], b [<script>]\n1, <script>, 3 %, 4\n2, <img src=x>, 3 %, 4\n");
  for (const std::size_t count : {1, 2}) {
    const std::vector<RunFolder> runs(count, read(name));
    const std::string page = report_page(runs);
    for (const char* part : {"<script", "<img", "<title></", "onerror=\""})
      EXPECT_FALSE(page_has(page, part)) << part;
    EXPECT_TRUE(page_has(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  }
}

TEST_F(RunFolders, AdviceIsListedOnceAndNewestFirst) {
  std::string text;
  for (const char* key : {"x", "comm.bucket_mib", "comm.bucket_mib"})
    text += fmt::format(
        R"({{"epoch":{0},"steps":{0},"account":{{"forward":1}},"communication":{{"steps":1,"advice":{{"cause":"c","key":"{1}","value":"1;id","text":"after {0}"}}}}}})"
        "\n",
        1 + std::count(text.begin(), text.end(), '\n'), key);
  write("a/metrics.jsonl", text);
  const std::vector<GivenAdvice> given = advice_of(read("a"));
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[0].advice.text, "after 3");
  EXPECT_EQ(given[0].times, 2u);
  EXPECT_EQ(given[1].advice.text, "after 1");
  EXPECT_TRUE(page_has(page_of("a"), "<code>--set 'comm.bucket_mib=1;id'</code>")) << "safe in a shell";
}

// An epoch's line with additional members.
std::string epoch_with(const std::string& members) {
  return "{" + members + "," + std::string(kEpoch).substr(1);
}

TEST_F(RunFolders, ConfusedClassesAreListed) {
  const std::string earlier = R"("top5":0.5,"confusion":[[1,1,1],[1,1,1],[1,1,1]])";
  const std::string last =
      R"("top5":0.99,"f1_macro":0.7,"f1_by_class":[0.9,0.8,0.4],"precision_by_class":[0.91,0.81,0.41],)"
      R"("recall_by_class":[0.92,0.82],"confusion":[[90,9,1],[0,100,0],[37,3,60]])";
  write("a/metrics.jsonl", epoch_with(earlier) + epoch_with(last));
  write("a/run.json", R"({"dataset":{"class_names":["cat","<b>","dog"]}})");
  const std::string page = page_of("a");
  EXPECT_TRUE(page_has(page, kHeatTable));
  EXPECT_TRUE(page_matches(page, R"(title="dog [^"]*cat\b[^"]*37 [^"]*100\b[^"]*37\.0 %[^"]*">37</td>)"));
  EXPECT_TRUE(page_matches(page, R"(title="&lt;b&gt; [^"]*&lt;b&gt;[^"]*100\.0 %[^"]*">100</td>)"));
  const std::size_t rarer = page.find("<td>cat</td><td>&lt;b&gt;</td>");
  ASSERT_NE(rarer, std::string::npos);
  EXPECT_LT(page.find("<td>dog</td><td>cat</td>"), rarer) << "the most frequent mistake first";
  EXPECT_TRUE(page_has(page, "40.0 %<span class=\"bar\">")) << "F1 of dogs";
  EXPECT_TRUE(page_matches(page, "<title>step 100\n[^<]*: 99 %")) << "top5 in a chart";
  const RunFolder run = read("a");
  EXPECT_TRUE(page_has(report_page(std::vector<RunFolder>{run, run}), "<td>99.0 %</td><td>99.0 %</td>"));
}

// Their F1 and IoU are 0, but no sample shows an error.
TEST_F(RunFolders, ClassesWithoutSamplesHaveNoScores) {
  const std::string scores =
      R"("f1_by_class":[0.9,0,0],"precision_by_class":[0.9,0,0],"recall_by_class":[0.9,0,0],)"
      R"("iou_by_class":[0.8,0,0])";
  write("a/metrics.jsonl", epoch_with(scores + R"(,"samples_by_class":[7,0,5])"));
  write("a/run.json", R"({"dataset":{"class_names":["cat","unseen","dog"]}})");
  const std::string section = class_section(read("a"));
  EXPECT_EQ(times_on_page(section, "<td>cat</td>"), 2u) << section;
  EXPECT_EQ(times_on_page(section, "<td>dog</td>"), 2u) << section;
  EXPECT_EQ(times_on_page(section, "unseen"), 0u) << section;
  write("a/metrics.jsonl", epoch_with(scores));
  EXPECT_EQ(times_on_page(class_section(read("a")), "<td>unseen</td>"), 2u) << "the samples are not counted";
}

TEST_F(RunFolders, NoConfusionGivesNoSectionOfClasses) {
  write("a/metrics.jsonl", kEpoch);
  EXPECT_EQ(class_section(read("a")), "");
  write("a/metrics.jsonl", epoch_with(R"("confusion":[[1,2],[3]],"f1_by_class":"none")"));
  EXPECT_EQ(class_section(read("a")), "") << "the value is no matrix";
  EXPECT_FALSE(page_has(page_of("a"), kHeatTable));
  write("a/metrics.jsonl", epoch_with(R"("confusion":[[0,0],[0,null]])"));
  EXPECT_TRUE(page_has(page_of("a"), kHeatTable));
}

TEST_F(RunFolders, HundredClassesMakeASmallPage) {
  std::string rows;
  for (int label = 0; label < 100; ++label) {
    rows += rows.empty() ? "[" : ",[";
    for (int taken = 0; taken < 100; ++taken) rows += (taken == 0 ? "" : ",") + std::to_string(label + taken);
    rows += "]";
  }
  write("a/metrics.jsonl", epoch_with("\"confusion\":[" + rows + "]"));
  EXPECT_LT(page_of("a").size(), 2'000'000u);
}

TEST_F(RunFolders, OnlyCrossEntropiesAreInNats) {
  for (const char* run : {"cross_entropy", "binary_cross_entropy", "mean_squared_error"}) {
    write(std::string(run) + "/metrics.jsonl", kEpoch);
    write(std::string(run) + "/config.toml", fmt::format("[model]\nloss = \"{}\"\n", run));
  }
  const std::vector<RunFolder> runs = {read("cross_entropy"), read("binary_cross_entropy"),
                                       read("mean_squared_error")};
  const auto in_nats = [&](std::size_t begin, std::size_t count) {
    const std::span<const RunFolder> some = std::span(runs).subspan(begin, count);
    return page_has(learning_charts({.runs = some, .names = run_names(some)}), "nats");
  };
  EXPECT_TRUE(in_nats(0, 1) && in_nats(1, 1));
  EXPECT_FALSE(in_nats(2, 1));
  EXPECT_TRUE(in_nats(0, 2));
  EXPECT_FALSE(in_nats(0, 3)) << "a chart of losses of different kinds";
}

TEST_F(RunFolders, EvaluationsWithinEpochsAreDrawn) {
  write("a/metrics.jsonl", kEpoch);  // at step 100
  write("a/evaluations.jsonl", R"({"epoch":1,"step":25,"test_loss":1.5,"test_accuracy":0.25,"top5":null})"
                               "\n"
                               R"({"epoch":1,"step":50,"test_loss":1,"test_accuracy":0.5})"
                               "\n"
                               R"({"epoch":1,"step":50,"test_loss":1,"test_accuracy":0.625})"
                               "\n");
  const RunFolder run = read("a");
  std::string told;
  for (const EvaluationRecord& point : evaluation_points(run))
    told += fmt::format("{}:{} ", point.step, point.evaluation.accuracy);
  EXPECT_EQ(told, "25:0.25 50:0.625 100:0.8 ");
  const std::string page = report_page({&run, 1});
  EXPECT_TRUE(page_matches(page, "<title>step 25\n[^<]*: 25 %"));
  EXPECT_FALSE(page_has(absent_section(run), "evaluations.jsonl"));
  write("a/evaluations.jsonl", R"({"epoch":1,"step":25,"test_loss":1.5,"test_accuracy":0.25,"top5":0.5})"
                               "\n");
  EXPECT_EQ(times_on_page(page_of("a"), "<figure>"), times_on_page(page, "<figure>") + 1)
      << "top5 has a chart if a line contains it";
}

// run.evaluate_every: an epoch without an evaluation has no point and hides no other.
TEST_F(RunFolders, EpochsWithoutEvaluationHaveNoPoint) {
  const std::string without =
      R"({"epoch":2,"steps":200,"train_loss":0.4,"samples_per_second":1000,"train_seconds":10,"busy":0.5})"
      "\n";
  write("a/metrics.jsonl", epoch_with(R"("confusion":[[5,0],[0,7]])") + without);
  const RunFolder run = read("a");
  ASSERT_EQ(run.epochs.size(), 2u);
  ASSERT_EQ(evaluation_points(run).size(), 1u);
  EXPECT_EQ(evaluation_points(run)[0].step, 100);
  const RunHeadline headline = headline_of(run);
  EXPECT_EQ(headline.test_accuracy, 0.8);
  EXPECT_EQ(headline.train_loss, 0.4);
  const std::string page = report_page({&run, 1});
  EXPECT_TRUE(page_has(page, "80.0 %"));
  EXPECT_TRUE(page_has(page, kHeatTable)) << "from the previous evaluation";
  write("b/metrics.jsonl", without);
  EXPECT_TRUE(evaluation_points(read("b")).empty());
  EXPECT_FALSE(page_has(page_of("b"), "nan"));
}

TEST_F(RunFolders, ExposedTimeIsShownByRankAndBucket) {
  const std::string communication =
      R"("communication":{"steps":100,"by_rank":[{"exposed_seconds":1,"exposed_seconds_by_bucket":[0.25,0.75]},)"
      R"({"exposed_seconds":4,"exposed_seconds_by_bucket":[0,4]}],"by_bucket":[{"bytes":1048576},{"bytes":2097152}]})";
  write("a/metrics.jsonl", epoch_with(communication) + epoch_with(communication));
  const std::string page = page_of("a");
  EXPECT_TRUE(page_has(page, "0 \u00b7 1 MiB</th><th>1 \u00b7 2 MiB"));
  EXPECT_TRUE(page_matches(page, R"(title="rank 1, bucket 1\b[^"]*40\.0 ms[^"]*">40\.0 ms</td>)"));
  EXPECT_TRUE(page_matches(page, R"(title="rank 0, bucket 0\b[^"]*2\.50 ms[^"]*">2\.50 ms</td>)"));
  EXPECT_TRUE(page_has(page, kHeatTable));
  write("a/metrics.jsonl",
        epoch_with(R"("communication":{"steps":100,"by_rank":[{"exposed_seconds":1}],"by_bucket":[{}]})"));
  EXPECT_FALSE(page_has(page_of("a"), kHeatTable)) << "metrics of an older version";
}

TEST_F(RunFolders, LongestWaitsOfManyRanksAreShown) {
  std::string ranks;
  for (int rank = 0; rank < 512; ++rank)
    ranks +=
        fmt::format(R"({}{{"exposed_seconds":{},"exposed_seconds_by_bucket":[{}]}})", rank == 0 ? "" : ",",
                    rank % 8 == 5 ? 9 : 1, fmt::join(std::vector<int>(30, rank), ","));
  std::string buckets = R"({"bytes":1})";
  for (int bucket = 1; bucket < 30; ++bucket) buckets += R"(,{"bytes":1})";
  write("a/metrics.jsonl",
        epoch_with(
            fmt::format(R"("communication":{{"steps":1,"by_rank":[{}],"by_bucket":[{}]}})", ranks, buckets)));
  const std::string page = page_of("a");
  EXPECT_TRUE(page_has(page, "64 ranks"));
  EXPECT_EQ(times_on_page(page, ", bucket 29"), 64u);
  EXPECT_TRUE(page_has(page, "title=\"rank 509, bucket 29"));
  EXPECT_FALSE(page_has(page, "title=\"rank 510, bucket 29"));
  EXPECT_LT(page.size(), 1'000'000u);
}

TEST_F(RunFolders, MemoryIsComparedWithItsPlan) {
  write("a/metrics.jsonl", epoch_with(R"("resident_bytes_by_rank":[3145728,4194304])"));
  write("a/run.json", R"({"planned_bytes":{"host":{"activations":1048576,"gradients":2097152}}})");
  const std::string memory = memory_section(read("a"));
  EXPECT_TRUE(page_has(page_of("a"), memory));
  const std::size_t smaller = memory.find("<td>activations</td>");
  ASSERT_NE(smaller, std::string::npos);
  EXPECT_LT(memory.find("<td>gradients</td>"), smaller) << "the largest first";
  EXPECT_TRUE(page_has(memory, "</td><td class=\"n\"><b>3 MiB</b>")) << "planned";
  EXPECT_TRUE(page_has(memory, "</td><td class=\"n\"><b>4 MiB</b>")) << "resident";
  EXPECT_EQ(times_on_page(memory, "<table"), 1u) << "the table of the process only";
  write("a/run.json",
        R"({"planned_bytes":{"host":{"activations":1048576},"device":{"activations":1048576}}})");
  write("a/monitor.csv", "timestamp, name, memory.used [MiB]\n2024/01/31 12:00:00.000, A, 7 MiB\n");
  EXPECT_EQ(times_on_page(memory_section(read("a")), "<table"), 2u) << "the table of the GPU, too";
  EXPECT_TRUE(page_has(page_of("a"), "<b>7 MiB</b>")) << "device memory from the monitor";
}

TEST(Numbers, HaveReadableUnitsAndDigits) {
  EXPECT_EQ(number_text(1234567.4), "1,234,567");
  EXPECT_EQ(number_text(0.01234567), "0.01235");
  EXPECT_EQ(number_text(kNotTold), "\u2013");
  EXPECT_EQ(percent_text(0.8321), "83.2 %");
  EXPECT_EQ(seconds_text(0.00123456), "1.23 ms");
  EXPECT_EQ(seconds_text(1e-6 * 811), "811 \u00b5s");
  EXPECT_EQ(seconds_text(12.345), "12.3 s");
  EXPECT_EQ(seconds_text(0.9997), "1.00 s");
  EXPECT_EQ(seconds_text(0.0009996), "1.00 ms");
  EXPECT_EQ(bytes_text(1'023 * 1'048'576.0), "0.999 GiB");
  EXPECT_EQ(seconds_text(3723), "1:02:03");
  EXPECT_EQ(bytes_text(26'214'400), "25 MiB");
  EXPECT_EQ(utc_text(1'706'702'400), "2024-01-31 12:00:00");
}

TEST_F(RunFolders, ManyStepsMakeASmallPage) {
  std::string steps;
  for (int step = 1; step <= 20'000; ++step) steps += step_line(step, 1 + 1 / static_cast<double>(step));
  write("a/metrics.jsonl", kEpoch);
  write("a/steps.jsonl", steps);
  const std::string page = page_of("a");
  EXPECT_LT(page.size(), 1'000'000u);
  EXPECT_TRUE(page_matches(page, R"(<span class="note">[^<]*20,000[^<]*\b240\b)"));
}

TEST_F(RunFolders, OnlyRegularFilesAreRead) {
  write("run/metrics.jsonl", kEpoch);
  write("secret", step_line(1));
  std::filesystem::create_symlink(folder_.path() / "secret", folder_.path() / "run/steps.jsonl");
  EXPECT_TRUE(page_has(message_of<DataError>([&] { read("run"); }), "run/steps.jsonl"));
  std::filesystem::remove(folder_.path() / "run/steps.jsonl");
  std::filesystem::create_symlink("/dev/null", folder_.path() / "run/monitor.csv");
  EXPECT_TRUE(page_has(message_of<DataError>([&] { read("run"); }), "run/monitor.csv"));
}

TEST_F(RunFolders, SecretsAreNotShown) {
  const std::vector<RunFact> facts =
      read_config_facts("[run]\nevent_command = \"curl token\"\n", "config.toml");
  ASSERT_EQ(facts.size(), 1u);
  EXPECT_EQ(facts[0].second, "redacted");
}

// The dashes are the share of the step, both peaks, and the share of the layer.
TEST(LayerPage, APeakThatWasNotMeasuredIsADash) {
  LayerProfile::Row row{.name = "fc1", .kind = "linear", .direction = "forward", .milliseconds = 1};
  LayerPage page;
  page.account[Phase::forward] = 2e-3;
  page.step_gigaflops = 5;
  page.rows = std::span(&row, 1);
  const std::string unknown = layer_page(page);
  row.share_of_peak = 0.5;
  page.peak_gigaflops = 100;
  page.peak_gigabytes = 10;
  const std::string known = layer_page(page);
  EXPECT_EQ(times_on_page(unknown, "\u2013"), times_on_page(known, "\u2013") + 4);
  EXPECT_TRUE(page_has(known, "50.0 %"));
  EXPECT_TRUE(page_has(unknown, "fc1"));
}

}  // namespace
}  // namespace lockstep
