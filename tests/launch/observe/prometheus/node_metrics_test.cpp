// SPDX-License-Identifier: Apache-2.0
//
// The metrics of a node for Prometheus: what they contain, what `lockstep monitor` reads back, and that the
// dashboard and the alerts name nothing else.
#include "launch/observe/prometheus/node_metrics.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/files/file_text.h"
#include "launch/observe/jobs/job_json.h"
#include "launch/observe/jobs/job_table.h"
#include "launch/observe/jobs/node_files.h"
#include "launch/observe/prometheus/listen_address.h"
#include "launch/observe/prometheus/metric_table.h"
#include "launch/observe/prometheus/metrics_output.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSampleNs = 1'000'000'000'000;
constexpr double kSampleTime = 1.7e9;

std::int64_t seconds_before(double seconds) { return kSampleNs - static_cast<std::int64_t>(1e9 * seconds); }

SeenRank busy_rank(std::int64_t number) {
  SeenRank rank{.identity = {.process = 4711 + number,
                             .since = kSampleTime - 5000,
                             .rank = number,
                             .ranks = 4,
                             .local_rank = number - 2,
                             .node = 1,
                             .threads = 8,
                             .epochs = 20,
                             .global_batch = 512,
                             .job = "node7.4700.1",
                             .host = "node7",
                             .run_dir = "/runs/x",
                             .model = "cnn",
                             .device = "cuda:" + std::to_string(number - 2),
                             .device_name = "NVIDIA H100",
                             .device_uuid = "GPU-" + std::to_string(number),
                             .device_address = "0000:3b:00.0"}};
  RankProgress& progress = rank.progress;
  progress.activity = Activity::training;
  progress.activity_ns = seconds_before(500);
  progress.epoch = 2;
  progress.epoch_step = 120;
  progress.epoch_steps = 469;
  progress.step = 589;
  progress.own_steps = 89;
  progress.test_loss = 1.5;
  progress.test_accuracy = 0.875;
  progress.step_ns = seconds_before(0.25);
  progress.window_steps = 10;
  progress.window_step = 580;
  progress.loss = 0.25;
  progress.learning_rate = 0.125;
  progress.samples_per_second = 4000;
  progress.busy = 0.75;
  progress.peak = 0.5;
  progress.account[Phase::forward] = 0.75;
  progress.account[Phase::exposed_communication] = 0.125;
  progress.account[Phase::data_wait] = 0.125;
  progress.total[Phase::exposed_communication] = 62.5;
  progress.idle_since_ns = seconds_before(60);
  return rank;
}

NodeMetrics whole_node() {
  NodeMetrics metrics{.view = {.host = "node7",
                               .time = kSampleTime,
                               .time_ns = kSampleNs,
                               .jobs = {{.ranks = {busy_rank(2), busy_rank(3)}}}}};
  metrics.job = metrics.view.jobs[0].identity();
  for (const char* uuid : {"GPU-2", "GPU-3"})
    metrics.view.devices[uuid] = {.name = "NVIDIA H100",
                                  .pci_bus_id = "00000000:3B:00.0",
                                  .celsius = 61,
                                  .utilization = 97,
                                  .memory_bytes = std::uint64_t{80} << 30,
                                  .memory_used_bytes = std::uint64_t{10} << 30,
                                  .watts = 654.25,
                                  .joules = 123456,
                                  .sm_mhz = 1980,
                                  .sm_activity = 50,
                                  .tensor_activity = 25,
                                  .memory_activity = 12.5};
  metrics.host = {
      .processor = 50, .job_processor = 25, .memory_bytes = 1000, .memory_used_bytes = 500, .joules = 77};
  metrics.warnings = {{"idle", "data", 3}};
  return metrics;
}

// The value of the only sample with this name and these labels.
double value_of(const std::string& text, const std::string& name,
                const std::map<std::string, std::string>& labels = {}) {
  double value = -1;
  int found = 0;
  for (const ParsedSample& sample : parse_exposition(text)) {
    const bool wanted = std::ranges::all_of(labels, [&](const auto& label) {
      const auto own = sample.labels.find(label.first);
      return own != sample.labels.end() && own->second == label.second;
    });
    if (sample.name != name || !wanted) continue;
    value = sample.value;
    ++found;
  }
  EXPECT_EQ(found, 1) << name;
  return value;
}

// All families that to_prometheus() writes.
std::vector<MetricFamily> metric_families() {
  using namespace metric_table;
  std::vector<MetricFamily> all = {kRunInfo, kRankInfo, kRankState, kPhaseRatio, kPhaseSeconds, kWarnings};
  const auto add = [&](const auto& table) {
    for (const auto& figure : table) all.push_back(figure.family);
  };
  add(kJobFigures);
  add(kRankFigures);
  add(kDeviceFigures);
  add(kHostFigures);
  return all;
}

bool has_metric(const std::string& text, const std::string& name) {
  return text.find("\n" + name + "{") != std::string::npos;
}

TEST(NodeMetrics, HaveBaseUnitsAndLabels) {
  const std::string text = to_prometheus(whole_node());
  const std::map<std::string, std::string> rank = {
      {"run", "/runs/x"}, {"host", "node7"}, {"rank", "3"}, {"device", "cuda:1"}};
  EXPECT_EQ(value_of(text, "lockstep_busy_ratio", rank), 0.75);
  EXPECT_EQ(value_of(text, "lockstep_samples_per_second", rank), 1000) << "a quarter of the job's";
  EXPECT_EQ(value_of(text, "lockstep_loss", rank), 0.25);
  EXPECT_EQ(value_of(text, "lockstep_step", rank), 589);
  EXPECT_EQ(value_of(text, "lockstep_steps_total", rank), 89) << "without those before a resume";
  EXPECT_EQ(value_of(text, "lockstep_test_accuracy_ratio", rank), 0.875);
  EXPECT_EQ(value_of(text, "lockstep_last_step_timestamp_seconds", rank), kSampleTime - 0.25);
  std::map<std::string, std::string> phase = rank;
  phase["phase"] = "exposed_communication";
  EXPECT_EQ(value_of(text, "lockstep_phase_ratio", phase), 0.125);
  EXPECT_EQ(value_of(text, "lockstep_phase_seconds_total", phase), 62.5);
  std::map<std::string, std::string> state = rank;
  state["state"] = "training";
  EXPECT_EQ(value_of(text, "lockstep_rank_state", state), 1);
  state["state"] = "died";
  EXPECT_EQ(value_of(text, "lockstep_rank_state", state), 0);
  const std::map<std::string, std::string> gpu = {
      {"run", "/runs/x"}, {"host", "node7"}, {"device", "cuda:1"}, {"uuid", "GPU-3"}};
  EXPECT_EQ(value_of(text, "lockstep_gpu_utilization_ratio", gpu), 0.97);
  EXPECT_EQ(value_of(text, "lockstep_gpu_memory_used_bytes", gpu), 10737418240.0);
  EXPECT_EQ(value_of(text, "lockstep_gpu_power_watts", gpu), 654.25);
  EXPECT_EQ(value_of(text, "lockstep_gpu_temperature_celsius", gpu), 61);
  EXPECT_EQ(value_of(text, "lockstep_gpu_clock_hertz", gpu), 1.98e9);
  EXPECT_EQ(value_of(text, "lockstep_host_cpu_ratio", {{"host", "node7"}, {"run", "/runs/x"}}), 0.5);
  EXPECT_EQ(value_of(text, "lockstep_warnings_total", {{"kind", "idle"}, {"cause", "data"}}), 3);
}

TEST(NodeMetrics, WaitingRankKeepsItsState) {
  NodeMetrics metrics = whole_node();
  metrics.view.jobs[0].ranks[0].waits = CollectiveWait{.what = "all_reduce 17", .seconds = 94};
  const std::string text = to_prometheus(metrics);
  EXPECT_EQ(value_of(text, "lockstep_rank_state", {{"rank", "2"}, {"state", "training"}}), 1);
  EXPECT_EQ(value_of(text, "lockstep_collective_wait_seconds", {{"rank", "2"}}), 94);
  EXPECT_EQ(value_of(text, "lockstep_collective_wait_seconds", {{"rank", "3"}}), 0);
}

TEST(NodeMetrics, ListNamesEveryFamily) {
  const std::string text = to_prometheus(whole_node());
  std::set<std::string> written, listed;
  for (const ParsedSample& sample : parse_exposition(text)) written.insert(sample.name);
  for (const MetricFamily& family : metric_families()) {
    listed.insert(std::string(family.name));
    EXPECT_TRUE(family.name.starts_with("lockstep_")) << family.name;
    EXPECT_EQ(family.name.ends_with("_total"), family.type == MetricType::counter) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
  }
  // All optional figures are set in this sample except the wait, which is 0.
  EXPECT_EQ(written, listed);
}

TEST(NodeMetrics, OutdatedFiguresAreOmitted) {
  for (const Activity activity : {Activity::training, Activity::evaluating}) {
    SCOPED_TRACE(name_of(activity));
    NodeMetrics metrics = whole_node();
    for (SeenRank& rank : metrics.view.jobs[0].ranks) {
      rank.progress.activity = activity;
      rank.progress.step_ns = seconds_before(60);
    }
    const std::string text = to_prometheus(metrics);
    for (const char* name : {"lockstep_busy_ratio", "lockstep_loss", "lockstep_samples_per_second",
                             "lockstep_step_seconds", "lockstep_phase_ratio"})
      EXPECT_FALSE(has_metric(text, name)) << name;
    for (const char* name : {"lockstep_steps_total", "lockstep_phase_seconds_total", "lockstep_rank_state",
                             "lockstep_last_step_timestamp_seconds", "lockstep_gpu_power_watts"})
      EXPECT_TRUE(has_metric(text, name)) << name;
  }
}

TEST(NodeMetrics, UnknownFiguresAreOmitted) {
  NodeMetrics metrics = whole_node();
  metrics.view.devices.clear();
  metrics.host = {};
  metrics.warnings.clear();
  for (SeenRank& rank : metrics.view.jobs[0].ranks) {
    rank.identity.device = "cpu";
    rank.identity.device_uuid = "";
    rank.progress.peak = std::numeric_limits<double>::quiet_NaN();
  }
  const std::string text = to_prometheus(metrics);
  for (const char* part : {"lockstep_gpu_", "lockstep_host_", "lockstep_warnings", "lockstep_peak", "NaN",
                           "phase=\"idle\"", "phase=\"device_wait\""})
    EXPECT_EQ(text.find(part), std::string::npos) << part;
}

TEST(NodeMetrics, LabelValuesAreEscaped) {
  NodeMetrics metrics = whole_node();
  const std::string path = "/runs/a \"quoted\" \\ path\n{x=\"1\"} 7,\xc3\xa9";
  metrics.job.run_dir = path + "\xff\x1b[2J";
  for (SeenRank& rank : metrics.view.jobs[0].ranks) rank.identity.run_dir = metrics.job.run_dir;
  const std::string text = to_prometheus(metrics);
  EXPECT_EQ(text.find_first_of("\x1b\xff"), std::string::npos);
  EXPECT_NE(text.find(R"(run="/runs/a \"quoted\" \\ path\n{x=\"1\"} 7,)"), std::string::npos);
  const auto samples = parse_exposition(text);
  ASSERT_FALSE(samples.empty());
  for (const ParsedSample& sample : samples)
    EXPECT_EQ(sample.labels.at("run"), path + "\\xff\\x1b[2J") << sample.name;
  EXPECT_EQ(samples.size(),
            static_cast<std::size_t>(std::ranges::count(text, '\n')) - 2 * metric_families().size())
      << "no value breaks its line";
}

TEST(NodeMetrics, MonitorShowsWhatTheFileContains) {
  const NodeMetrics metrics = whole_node();
  const auto read = metrics_from(to_prometheus(metrics));
  ASSERT_TRUE(read);
  EXPECT_EQ(table_of(read->view, 30, {}), table_of(metrics.view, 30, {}));
  const auto json = nlohmann::json::parse(to_json(read->view, 30));
  const auto wanted = nlohmann::json::parse(to_json(metrics.view, 30));
  for (const char* key :
       {"job", "run_dir", "model", "since", "ranks", "epochs", "global_batch", "samples_per_second"})
    EXPECT_EQ(json["jobs"][0][key], wanted["jobs"][0][key]) << key;
  for (const char* key :
       {"rank", "host", "node", "local_rank", "process", "device", "uuid", "threads", "state", "epoch",
        "epoch_step", "epoch_steps", "step", "busy", "peak", "loss", "learning_rate"})
    EXPECT_EQ(json["jobs"][0]["here"][1][key], wanted["jobs"][0]["here"][1][key]) << key;
  EXPECT_NEAR(json["jobs"][0]["here"][1]["account"]["forward"], 0.075, 1e-9) << "of one step";
  EXPECT_EQ(json["devices"], wanted["devices"]);
}

TEST(NodeMetrics, StatesAreReadBack) {
  for (const char* state :
       {"starting", "training", "evaluating", "saving", "finishing", "waiting", "stopped", "died"}) {
    NodeMetrics metrics = whole_node();
    SeenRank& rank = metrics.view.jobs[0].ranks[0];
    const std::string_view wanted = state;
    if (wanted == "waiting") rank.waits = CollectiveWait{.what = "all_reduce 17", .seconds = 94};
    if (wanted == "stopped") rank.life = RankLife::stopped;
    if (wanted == "died") rank.life = RankLife::died;
    for (std::size_t i = 0; i < std::size(kActivityWords); ++i)
      if (kActivityWords[i] == wanted) rank.progress.activity = static_cast<Activity>(i);
    const auto read = metrics_from(to_prometheus(metrics));
    ASSERT_TRUE(read);
    EXPECT_EQ(state_of(read->view.jobs[0].ranks[0]), wanted);
  }
}

TEST(NodeMetrics, DamagedTextIsReadWithoutHarm) {
  EXPECT_FALSE(metrics_from(""));
  EXPECT_FALSE(metrics_from("lockstep_busy_ratio{rank=\"0\"} 1\n")) << "no rank is described";
  const std::string text = to_prometheus(whole_node());
  for (std::size_t end = 0; end < text.size(); end += 37) metrics_from(text.substr(0, end));
  for (const char* value : {"1e300", "-1e300", "NaN", "+Inf", "-Inf", "99999999999999999999"}) {
    const std::string changed =
        std::regex_replace(text, std::regex(R"(\} \S+\n)"), std::string("} ") + value + "\n");
    const auto read = metrics_from(changed);
    ASSERT_TRUE(read) << value;
    table_of(read->view, 30, {});
    to_json(read->view, 30);
  }
}

TEST(Exposition, SkipsLinesThatAreNotSamples) {
  const auto samples = parse_exposition(
      "# HELP a b\na 1\n\nb{x=\"1\"} 2.5\nc{x=\"1\",} 3\nd{x=1} 4\ne{x=\"1} 5\nf{ 6\ng{x=\"1\"y=\"2\"} 7\nh\n"
      "i one\nj{x=\"\\\nk{x=\"\\n\\\"\\\\\"} +Inf\n");
  std::string names;
  for (const ParsedSample& sample : samples) names += sample.name;
  EXPECT_EQ(names, "abck");
  EXPECT_EQ(samples[1].value, 2.5);
  EXPECT_EQ(samples[3].labels.at("x"), "\n\"\\");
}

TEST(ListenAddress, IsLoopbackUnlessGiven) {
  const auto text_of_address = [](std::string_view text) {
    const auto address = parse_listen_address(text);
    return address ? fmt::format("{} {}", address->host, address->port) : "none";
  };
  EXPECT_EQ(text_of_address("9464"), "127.0.0.1 9464");
  EXPECT_EQ(text_of_address("0"), "127.0.0.1 0");
  EXPECT_EQ(text_of_address("0.0.0.0:9464"), "0.0.0.0 9464");
  EXPECT_EQ(text_of_address("[::1]:9464"), "::1 9464");
  EXPECT_EQ(text_of_address("localhost:9464"), "localhost 9464");
  for (const char* wrong : {"", "none", ":9464", "localhost", "localhost:", "localhost:http", "65536", "-1",
                            "::1:9464", "[127.0.0.1]:9464", "1.2.3.4:99999", " 9464"})
    EXPECT_EQ(text_of_address(wrong), "none") << wrong;
}

TEST(MetricsFiles, NamesAreSafeAndDifferByRun) {
  const std::string name = metrics_file_name("/runs/a b/\xc3\xa9\n$(x)", "node7");
  EXPECT_TRUE(std::regex_match(name, std::regex(R"(lockstep\.[A-Za-z0-9_-]+\.node7\.prom)"))) << name;
  EXPECT_NE(metrics_file_name("/a/run", "n"), metrics_file_name("/b/run", "n"));
  EXPECT_EQ(metrics_file_name("/a/run", "n"), metrics_file_name("/a/run", "n"));
}

class MetricsFolder : public testing::Test {
 protected:
  void add(const std::string& name, const NodeMetrics& metrics) const {
    std::ofstream(folder_.path() / name) << to_prometheus(metrics);
  }
  static NodeMetrics node(const std::string& host, double age) {
    NodeMetrics metrics = whole_node();
    metrics.view.host = host;
    metrics.view.time = seconds_since_1970() - age;
    return metrics;
  }
  TemporaryFolder folder_;
};

TEST_F(MetricsFolder, EachFileIsAViewAndOthersAreSkipped) {
  add("lockstep.x-1.a.prom", node("a", 0));
  add("lockstep.x-1.b.prom", node("b", 0));
  add("lockstep.x-1.c.prom.partial-1234", node("c", 0));
  add("other.prom", node("d", 0));
  std::ofstream(folder_.path() / "lockstep.x-1.e.prom") << "lockstep_busy_ratio{ra";
  fs::create_directory(folder_.path() / "lockstep.x-1.f.prom");
  fs::create_symlink(folder_.path() / "other.prom", folder_.path() / "lockstep.x-1.g.prom");
  const auto views = view_files(folder_.path());
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].host, "a");
  EXPECT_EQ(views[1].host, "b");
  EXPECT_TRUE(views[1].anybody_lives());
  EXPECT_EQ(view_files(folder_.path(), "/runs/x").size(), 2u);
  EXPECT_TRUE(view_files(folder_.path(), "/runs/y").empty());
  expect_parts(message_of<IoError>([&] { view_files(folder_.path() / "none"); }), {"none", "No such file"});
}

TEST_F(MetricsFolder, FileThatIsNoLongerWrittenIsReported) {
  add("lockstep.x-1.a.prom", node("a", 3600));
  const auto views = view_files(folder_.path());
  ASSERT_EQ(views.size(), 1u);
  EXPECT_FALSE(views[0].anybody_lives());
  EXPECT_GE(views[0].silent_seconds, 3600);
  expect_parts(table_of(views[0], 1e9, {}), {"60m", "killed", "training", "-"});
  EXPECT_GE(nlohmann::json::parse(to_json(views[0], 30))["silent_seconds"], 3600);
  NodeMetrics slow = node("a", 100);
  slow.interval_seconds = 60;
  add("lockstep.x-1.a.prom", slow);
  EXPECT_EQ(view_files(folder_.path())[0].silent_seconds, 0) << "less than three intervals";
}

std::string launch_file(const std::string& name) { return file_text(source_folder() + "/launch/" + name); }

// Queries of the dashboard: those of its panels and of its variables.
void add_queries(const nlohmann::json& json, std::vector<std::string>& queries) {
  for (const auto& [key, value] : json.items()) {
    if ((key == "expr" || key == "query") && value.is_string()) queries.push_back(value);
    if (value.is_structured()) add_queries(value, queries);
  }
}

void expect_known_names(const std::string& query) {
  static const std::string page = to_prometheus(whole_node());
  static const std::regex name(R"(lockstep_\w+)");
  for (std::sregex_iterator each(query.begin(), query.end(), name), end; each != end; ++each)
    EXPECT_TRUE(has_metric(page, each->str())) << each->str() << " in " << query;
  // Labels in selectors, and in by (...) and on (...).
  std::set<std::string> labels;
  for (const ParsedSample& sample : parse_exposition(page))
    for (const auto& [label, value] : sample.labels) labels.insert(label);
  static const std::regex label(R"((\w+)(=~|!~|!=|=)\")");
  for (std::sregex_iterator each(query.begin(), query.end(), label), end; each != end; ++each)
    EXPECT_TRUE(labels.contains((*each)[1])) << (*each)[1] << " in " << query;
  static const std::regex list(R"(\b(by|on) \(([^)]*)\))"), word(R"(\w+)");
  for (std::sregex_iterator each(query.begin(), query.end(), list), end; each != end; ++each) {
    const std::string names = (*each)[2];
    for (std::sregex_iterator one(names.begin(), names.end(), word); one != end; ++one)
      EXPECT_TRUE(labels.contains(one->str())) << one->str() << " in " << query;
  }
}

TEST(Dashboard, QueriesNameOnlyMetricsThatExist) {
  std::vector<std::string> queries;
  add_queries(nlohmann::json::parse(launch_file("prometheus/dashboard.json")), queries);
  EXPECT_GT(queries.size(), 25u);
  std::string all;
  for (const std::string& query : queries) {
    expect_known_names(query);
    all += query;
  }
  for (const char* shown : {"busy", "samples_per_second", "loss", "exposed_communication", "gpu_utilization",
                            "gpu_memory_used", "gpu_power", "gpu_temperature", "warnings"})
    EXPECT_NE(all.find(shown), std::string::npos) << shown;
}

TEST(Alerts, RulesNameOnlyMetricsThatExist) {
  const std::string rules = launch_file("prometheus/alerts.yaml");
  EXPECT_NE(rules.find("lockstep_"), std::string::npos);
  expect_known_names(rules);
}

// The time of the last step is absent before the first step, and old after a long evaluation.
TEST(Alerts, NoStepRuleCountsFromTheStartOfTheState) {
  const std::string rules = launch_file("prometheus/alerts.yaml");
  const std::string rule = rules.substr(rules.find("LockstepNoStep"));
  expect_parts(rule.substr(0, rule.find("annotations")),
               {"lockstep_last_step_timestamp_seconds", "lockstep_activity_timestamp_seconds"});
}

// The page lists every metric, and no other.
TEST(Metrics, PageListsEveryMetric) {
  const std::string page = launch_file("observe/prometheus/README.md");
  static const std::regex row(R"(\| `(lockstep_\w+)`)");
  std::set<std::string> listed, expected;
  for (std::sregex_iterator each(page.begin(), page.end(), row), end; each != end; ++each)
    listed.insert((*each)[1]);
  for (const MetricFamily& family : metric_families()) expected.insert(std::string(family.name));
  EXPECT_EQ(listed, expected);
}

}  // namespace
}  // namespace lockstep
