// SPDX-License-Identifier: Apache-2.0
//
// The display of ranks for people and programs: rows, confirmed values, and idle devices with a context.
#include "launch/observe/jobs/node_view.h"

#include <algorithm>
#include <regex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/timeline.h"
#include "launch/observe/jobs/job_json.h"
#include "launch/observe/jobs/job_table.h"
#include "launch/observe/monitor/idle_device.h"
#include "tests/launch/observe/monitor/nvml_stub.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using ViewJson = nlohmann::json;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 1000 * kSecond;
constexpr double kIdle = 30;

// A rank that trains on a GPU, busy for 80 % of its 0.1 s steps, right after a step.
SeenRank training_rank() {
  SeenRank rank{.identity = {.process = 4711,
                             .rank = 3,
                             .ranks = 4,
                             .threads = 2,
                             .epochs = 20,
                             .job = "node7.4700.1",
                             .run_dir = "/runs/x",
                             .model = "cnn",
                             .device = "cuda:3",
                             .device_name = "NVIDIA H100",
                             .device_uuid = "GPU-one",
                             .device_address = "0000:3b:00.0"}};
  RankProgress& progress = rank.progress;
  progress.activity = Activity::training;
  progress.activity_ns = kNow - 500 * kSecond;
  progress.epoch = 2;
  progress.epoch_step = 120;
  progress.epoch_steps = 469;
  progress.step = 589;
  progress.step_ns = kNow - kSecond / 10;
  progress.window_steps = 10;
  progress.window_ns = kNow - kSecond / 2;
  progress.loss = 0.25;
  progress.samples_per_second = 4000;
  progress.busy = 0.8;
  progress.account[Phase::forward] = 0.8;
  progress.account[Phase::exposed_communication] = 0.15;
  progress.account[Phase::data_wait] = 0.05;
  return rank;
}

NodeView view_of(const SeenRank& rank) {
  NodeView view{.host = "node7", .time = 1e9, .time_ns = kNow};
  view.jobs.push_back({.ranks = {rank}});
  return view;
}

std::string why_idle(const SeenRank& rank, std::optional<double> utilization = std::nullopt) {
  NodeView view = view_of(rank);
  if (utilization) view.devices["GPU-one"].utilization = utilization;
  const auto idle = idle_device(rank, view, kIdle);
  return idle ? idle->why : "";
}

void rest_for(SeenRank& rank, std::int64_t seconds) { rank.progress.step_ns = kNow - seconds * kSecond; }

TEST(IdleDevice, NoStepForALongTimeIsReported) {
  SeenRank rank = training_rank();
  EXPECT_EQ(why_idle(rank), "");
  rest_for(rank, 29);
  EXPECT_EQ(why_idle(rank), "");
  rest_for(rank, 95);
  expect_parts(why_idle(rank), {"step", "95 s"});
  expect_parts(why_idle(rank, 100.0), {"step", "95 s"});  // a kernel that waits counts as use
  rank.waits = CollectiveWait{.what = "all_reduce 17", .seconds = 94};
  expect_parts(why_idle(rank), {"step", "95 s", "all_reduce 17", "94 s"});
  rank.life = RankLife::stopped;
  expect_parts(why_idle(rank), {"step", "95 s", "stopped"});
  EXPECT_EQ(why_idle(rank).find("all_reduce"), std::string::npos) << why_idle(rank);
  rank.life = RankLife::died;
  EXPECT_EQ(why_idle(rank), "") << "a dead rank holds no device";
}

TEST(IdleDevice, LongStepsAreNotReported) {
  SeenRank rank = training_rank();
  for (double& seconds : rank.progress.account.seconds) seconds *= 500;  // 50 s a step
  rest_for(rank, 95);
  EXPECT_EQ(why_idle(rank), "");
  rest_for(rank, 200);
  expect_parts(why_idle(rank), {"step", "200 s"});
}

TEST(IdleDevice, LowBusyShareIsReported) {
  SeenRank rank = training_rank();
  rank.progress.busy = 0.02;
  rank.progress.account[Phase::data_wait] = 40;
  rank.progress.idle_since_ns = kNow - 20 * kSecond;
  EXPECT_EQ(why_idle(rank), "");
  rank.progress.idle_since_ns = kNow - 60 * kSecond;
  expect_parts(why_idle(rank), {"less than 5 %", "60 s", "data"});
}

TEST(IdleDevice, UtilizationDecidesOutsideSteps) {
  SeenRank rank = training_rank();
  rank.progress.activity_ns = kNow - 95 * kSecond;
  rest_for(rank, 96);
  rank.progress.activity = Activity::saving;
  expect_parts(why_idle(rank), {"saving", "95 s"});
  EXPECT_EQ(why_idle(rank, 40.0), "");
  rank.progress.activity = Activity::evaluating;
  EXPECT_EQ(why_idle(rank), "");
  EXPECT_EQ(why_idle(rank, 40.0), "");
  expect_parts(why_idle(rank, 0.0), {"evaluating", "95 s"});
  rank.life = RankLife::stopped;
  expect_parts(why_idle(rank), {"evaluating", "95 s", "stopped"});
}

TEST(JobTable, DeadJobIsOneLine) {
  SeenRank rank = training_rank();
  rank.life = RankLife::died;
  rank.progress.step = 41;
  rest_for(rank, 300);
  const std::vector<std::string> lines = lines_of(table_of(view_of(rank), kIdle, {}));
  ASSERT_EQ(lines.size(), 4u);
  expect_parts(lines[3], {"died", "300s", "step 41"});
}

TEST(JobTable, HasARowForEachRank) {
  const std::vector<std::string> lines = lines_of(table_of(view_of(training_rank()), kIdle, {}));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_TRUE(lines[0].starts_with("node7 ")) << lines[0];
  expect_parts(lines[2], {"cnn", "4000 samples/s", "loss 0.2500", "/runs/x"});
  EXPECT_TRUE(std::regex_search(lines[2], std::regex(R"(4 ranks\D*1\b)"))) << lines[2];  // 1 on this node
  EXPECT_EQ(lines[3], "rank device  state      epoch        step busy peak samples/s data comm  last");
  EXPECT_EQ(lines[4], "   3 cuda:3  training    2/20     120/469  80%    -      1000   5%  15%  0.1s");
}

TEST(JobTable, StaleFiguresAreNotShown) {
  SeenRank rank = training_rank();
  rest_for(rank, 95);
  const std::vector<std::string> lines = lines_of(table_of(view_of(rank), kIdle, {}));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[4], "   3 cuda:3  training    2/20     120/469    -    -         -    -    -   95s");
  expect_parts(lines[5], {"rank 3", "cuda:3", "0000:3b:00.0", "NVIDIA H100", why_idle(rank)});
}

TEST(JobTable, FiguresOfStepsAreNotShownInALongEvaluation) {
  SeenRank rank = training_rank();
  rank.progress.activity = Activity::evaluating;
  rank.progress.activity_ns = kNow - 60 * kSecond;
  rest_for(rank, 61);
  const std::vector<std::string> lines = lines_of(table_of(view_of(rank), kIdle, {}));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[2].find("samples/s"), std::string::npos) << lines[2];
  EXPECT_EQ(lines[4], "   3 cuda:3  evaluating  2/20     120/469    -    -         -    -    -   61s");
  EXPECT_TRUE(ViewJson::parse(to_json(view_of(rank), kIdle))["jobs"][0]["samples_per_second"].is_null());
  rank.progress.activity = Activity::training;
  rank.progress.activity_ns = kNow;
  EXPECT_FALSE(figures_hold(rank, kNow)) << "before the first step after the evaluation";
  rest_for(rank, 0);
  EXPECT_TRUE(figures_hold(rank, kNow));
}

TEST(JobTable, FitsATerminalWithAnyContent) {
  SeenRank rank = training_rank();
  rank.identity.epochs = 1'000'000;
  rank.progress.epoch = 99'999;
  rank.progress.epoch_steps = rank.progress.epoch_step = 99'999'999;
  rank.progress.samples_per_second = 4e8;
  rank.progress.busy = rank.progress.peak = 1;
  rank.progress.account = {};
  rank.progress.account[Phase::data_wait] = 4000;  // 400 s a step: the figures are shown
  rank.progress.activity = Activity::evaluating;
  rank.identity.device = "cuda:12";
  rest_for(rank, 900);
  NodeView view = view_of(rank);
  view.devices["GPU-one"] = {.name = "NVIDIA RTX PRO 6000 Blackwell Server Edition",
                             .utilization = 0,
                             .memory_bytes = std::uint64_t{96} << 30,
                             .memory_used_bytes = std::uint64_t{95} << 30,
                             .watts = 600};
  for (const std::string& line : lines_of(table_of(view, kIdle, {.present = true, .columns = 80})))
    EXPECT_LE(line.size(), 80u) << line;
}

TEST(JobTable, ControlCharactersAreNotPrinted) {
  SeenRank rank = training_rank();
  rank.identity.run_dir = "/runs/\x1b[2J";
  rank.identity.device = "\x1b[H";
  const std::size_t lines = lines_of(table_of(view_of(training_rank()), kIdle, {})).size();
  EXPECT_EQ(table_of(view_of(rank), kIdle, {}).find('\x1b'), std::string::npos);
  rank.identity.run_dir = "/runs/\n1 cuda:0\t";
  rank.identity.device = "c\n\td";
  const std::string table = table_of(view_of(rank), kIdle, {});
  EXPECT_EQ(table.find('\t'), std::string::npos);
  EXPECT_EQ(lines_of(table).size(), lines);
}

TEST(JobJson, UnknownValuesAreNull) {
  SeenRank rank = training_rank();
  ViewJson json = ViewJson::parse(to_json(view_of(rank), kIdle));
  const ViewJson job = json["jobs"][0], here = job["here"][0];
  EXPECT_EQ(json["host"], "node7");
  EXPECT_EQ(job["run_dir"], "/runs/x");
  EXPECT_EQ(job["samples_per_second"], 4000);
  EXPECT_EQ(here["rank"], 3);
  EXPECT_EQ(here["samples_per_second"], 1000);
  EXPECT_EQ(here["state"], "training");
  EXPECT_EQ(here["step"], 589);
  EXPECT_EQ(here["account"]["forward"], 0.8);
  EXPECT_TRUE(here["peak"].is_null());
  EXPECT_TRUE(here["idle"].is_null());
  rest_for(rank, 95);
  rank.waits = CollectiveWait{.what = "all_reduce 17", .seconds = 94};
  json = ViewJson::parse(to_json(view_of(rank), kIdle));
  const ViewJson waiting = json["jobs"][0]["here"][0];
  EXPECT_EQ(waiting["state"], "waiting");
  EXPECT_EQ(waiting["waits"]["collective"], "all_reduce 17");
  EXPECT_EQ(waiting["idle"]["seconds"], 95);
  EXPECT_TRUE(waiting["busy"].is_null());
}

class NodeViews : public testing::Test {
 protected:
  void SetUp() override { stub_.say_all(); }
  NvmlStub stub_;
  TemporaryFolder folder_;
};

RankIdentity of_job(const std::string& job, std::int64_t rank, const std::string& uuid = "") {
  return {.rank = rank, .ranks = 2, .job = job, .run_dir = "/runs/" + job, .device_uuid = uuid};
}

TEST_F(NodeViews, GroupRanksByJobAndAddGpuFigures) {
  const ShownRank b1(of_job("b", 1), folder_.path()), a0(of_job("a", 0, "GPU-one"), folder_.path()),
      b0(of_job("b", 0, "GPU-two"), folder_.path());
  NodeViewer viewer(folder_.path(), LOCKSTEP_NVML_STUB);
  const NodeView view = viewer.look();
  ASSERT_EQ(view.jobs.size(), 2u);
  EXPECT_EQ(view.jobs[0].ranks.size(), 1u);
  EXPECT_EQ(view.jobs[1].ranks.size(), 2u);
  EXPECT_EQ(view.devices.size(), 2u);
  EXPECT_EQ(view.devices.at("GPU-one").utilization, 97);
  const ViewJson json = ViewJson::parse(to_json(view, kIdle));
  EXPECT_EQ(json["devices"][0]["uuid"], "GPU-one");
  EXPECT_EQ(json["devices"][0]["watts"], 654.321);
  expect_parts(table_of(view, kIdle, {}), {"97 %", "10.0", "79.6 GiB", "654 W", "61 C", "NVIDIA H100"});
  ASSERT_EQ(viewer.look("/runs/b").jobs.size(), 1u);
  EXPECT_EQ(viewer.look("/runs/b/../b").jobs[0].identity().job.str(), "b");
  EXPECT_TRUE(viewer.look("/runs/c").jobs.empty());
  const std::string long_name(600, 'f');
  const ShownRank far(of_job(long_name, 0), folder_.path());
  EXPECT_EQ(viewer.look("/runs/" + long_name).jobs.size(), 1u);
}

// A context on the second GPU that uses memory and computes nothing. Contexts of other processes are not
// reported.
TEST_F(NodeViews, NameContextsOnIdleGpus) {
  ShownRank shown(of_job("a", 0, "GPU-one"), folder_.path());
  shown.introduce([](RankIdentity& rank) { rank.device_address = "0000:3b:00.0"; });
  const std::string own = std::to_string(getpid());
  std::string others;
  for (int process = 1; process <= 40; ++process) others += std::to_string(1'000'000'000 + process) + " ";
  stub_.say({{"1.processes", own}, {"2.processes", others + own}, {"utilization.gpu", "0"}});
  NodeViewer viewer(folder_.path(), LOCKSTEP_NVML_STUB);
  NodeView view = viewer.look();
  EXPECT_EQ(view.contexts.size(), 42u);
  const ViewJson idle = ViewJson::parse(to_json(view, kIdle))["jobs"][0]["here"][0]["idle_contexts"];
  ASSERT_EQ(idle.size(), 1u) << idle;
  EXPECT_EQ(idle[0]["uuid"], "GPU-two");
  const std::vector<std::string> lines = lines_of(table_of(view, kIdle, {}));
  const auto line = std::ranges::find_if(
      lines, [](const std::string& each) { return each.find("00000000:86:00.0") != std::string::npos; });
  ASSERT_TRUE(line != lines.end());
  expect_parts(*line, {"rank 0", "idle"});
  stub_.say("2.utilization.gpu", "50");
  view = viewer.look();
  EXPECT_TRUE(idle_contexts(view.jobs[0].ranks[0], view).empty());
  stub_.say("2.processes", "");
  EXPECT_EQ(viewer.look().contexts.size(), 1u);
}

TEST_F(NodeViews, HaveNoDevicesWithoutNvml) {
  const ShownRank shown(of_job("a", 0, "GPU-one"), folder_.path());
  const NodeView view = NodeViewer(folder_.path(), "libthere-is-none.so.1").look();
  EXPECT_EQ(view.jobs.size(), 1u);
  EXPECT_TRUE(view.devices.empty());
}

}  // namespace
}  // namespace lockstep
