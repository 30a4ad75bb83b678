// SPDX-License-Identifier: Apache-2.0
//
// Tests make devices idle, each for another reason, and the program reports the cause.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tests/data/jpeg_files.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kTold = {"run.log_every=5", "run.busy_lines=2", "run.event_pause_seconds=0",
                                        "run.measure_peak=true"};

// In the text of an event: the range of its steps.
const std::regex kStepRange("steps [0-9]+ ?(to|-|and) ?[0-9]+");

std::vector<Json> events_in(const std::filesystem::path& run) { return json_lines_of(run / "events.jsonl"); }

std::vector<std::string> with(std::vector<std::string> settings) {
  settings.insert(settings.end(), kTold.begin(), kTold.end());
  return settings;
}

// The first event with this cause, which the terminal shows, too. On a machine with other work, ranks wait
// for cores for a while and may cause further events.
Json event_of(const ProgramResult& result, const std::filesystem::path& run, const std::string& cause,
              double busy_below = 0.7) {
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const Json& event : events_in(run)) {
    if (event["cause"] != cause) continue;
    const std::string text = event["text"];
    EXPECT_GE(count(result.output, text + "\n"), 1) << result.output;
    EXPECT_TRUE(std::regex_search(text, kStepRange)) << text;
    EXPECT_LT(event["busy"], busy_below);
    // Equal if all cores compute, however many ranks share them.
    const Json& estimate = event["samples_per_second_estimated"];
    EXPECT_TRUE(estimate.is_null() || estimate >= event["samples_per_second"]) << event;
    return event;
  }
  ADD_FAILURE() << cause << " was not reported:\n" << result.output;
  return {{"text", ""}, {"account", {{"exposed_communication", 0}, {"data_wait", 0}}}};
}

// The cores that programs started here may use.
int cores_of_programs() {
  const std::string info = run_shell(program("lockstep") + " info").output;
  std::smatch usable;
  const bool found = std::regex_search(info, usable, std::regex("([0-9]+) (cores;|for this process)"));
  EXPECT_TRUE(found) << info;
  return found ? std::stoi(usable[1]) : 0;
}

// busy_watch_test.cpp proves the rule. Here the delay is longer than any that other programs cause.
// LOCKSTEP_EVENT_COMMAND runs for each event; it may end after the training.
TEST(IdleProgram, LateRankIsCommunication) {
  if (cores_of_programs() < 2) GTEST_SKIP() << "needs two cores: on one, ranks wait for a core";
  const Workplace workplace("idle_late");
  const std::string told = workplace.path("told");
  setenv("LOCKSTEP_EVENT_COMMAND", ("echo \"$LOCKSTEP_EVENT\" >> " + told).c_str(), 1);
  const ProgramResult result = run_ranks(
      2, workplace.train(with({"train.steps=4"}),
                         "--set run.log_every=1 --set run.busy_lines=1 --inject slow:rank=1,step=1,ms=500"));
  unsetenv("LOCKSTEP_EVENT_COMMAND");
  const Json event = event_of(result, workplace.path("run"), "communication");
  EXPECT_GT(event["account"]["exposed_communication"], event["account"]["data_wait"]);
  const std::string events = text_of(workplace.path("run/events.jsonl"));
  ASSERT_FALSE(events.empty());
  const ProgramResult waited = run_shell(workplace.script(
      "run=$$\n" + wait_until(fmt::format("[ $(wc -c < {}) -eq {} ]", told, events.size()))));
  EXPECT_EQ(waited.exit_code, 0) << waited.output;
  for (const std::string& line : lines_of(events)) EXPECT_EQ(count(text_of(told), line + "\n"), 1) << line;
}

TEST(IdleProgram, RanksThatShareACoreAreAllocation) {
  NEEDS_QUIET_CORES();
  const Workplace workplace("idle_core");
  const ProgramResult result =
      run_ranks(4, on_one_core() + workplace.train(with({"train.steps=80", "train.epochs=10",
                                                         "train.batch=16", "model.name=cnn"})));
  const Json event = event_of(result, workplace.path("run"), "allocation");
  const bool more_cores = sysconf(_SC_NPROCESSORS_ONLN) > 1;
  expect_parts(event["text"].get<std::string>(),
               more_cores ? std::vector<std::string>{"mpirun --bind-to none"}
                          : std::vector<std::string>{"4 threads", "4 ranks", "1 rank"});
}

// Large images for a small network: decoding takes most of the time.
std::string training_on_large_images(const TemporaryFolder& folder,
                                     const std::vector<std::string>& settings) {
  constexpr ImageShape kLarge{.height = 600, .width = 600, .channels = 3};
  for (int i = 0; i < 24; ++i)
    folder.write(fmt::format("{}/class{}/{}.jpg", i < 20 ? "train" : "test", i % 2, i),
                 encode(kLarge, noise(kLarge, static_cast<std::uint32_t>(i))));
  std::string command = program("lockstep") + " train cifar10_resnet18 --set world.device=cpu";
  std::vector<std::string> all = {"data.path=" + folder.path().string(),
                                  "run.dir=" + (folder.path() / "run").string(),
                                  "data.resize=32",
                                  "data.loader=stream",
                                  "model.name=mlp",
                                  "model.mlp.width=4",
                                  "train.precision=fp32",
                                  "train.batch=4",
                                  "train.threads=1",
                                  "train.epochs=20",
                                  "optimizer.learning_rate=0.0001"};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& setting : all) command += " --set '" + setting + "'";
  return command;
}

// The rank and its loader share a core: with two, some schedulers still keep both on one, and the cause is
// "allocation".
TEST(IdleProgram, SlowImageDecodingIsData) {
  NEEDS_QUIET_CORES();
  const TemporaryFolder folder;
  const std::string command =
      training_on_large_images(folder, with({"data.loader_threads=1", "run.busy_below=1"}));
  const Json event = event_of(run_shell(on_one_core() + command), folder.path() / "run", "data", 1);
  EXPECT_EQ(event["key"], "data.loader");
  EXPECT_EQ(event["value"], "preload");
}

// train.threads limits the compute threads only.
TEST(IdleProgram, LoaderThreadsMayOutnumberComputeThreads) {
  if (cores_of_programs() < 2) GTEST_SKIP() << "needs two cores";
  const TemporaryFolder folder;
  const ProgramResult result = run_shell(training_on_large_images(folder, {"data.loader_threads=0"}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(lines_naming(result.output, "data.loader_threads = 0", "threads"), "") << result.output;
}

// Samples are computed, which no disk makes faster. The rank and its loader share a core.
TEST(IdleProgram, SlowSamplesWithTheDefaultLoaderAreData) {
  NEEDS_QUIET_CORES();
  const Workplace workplace("idle_samples");
  for (const bool several_epochs : {true, false}) {
    std::filesystem::remove_all(workplace.path("run"));
    const std::string command =
        workplace.train(with({"data.format=synthetic", "data.synthetic.height=96", "data.synthetic.width=96",
                              "data.synthetic.channels=3", "data.synthetic.train_samples=640",
                              "data.synthetic.test_samples=64", "data.loader_threads=1", "model.mlp.width=4",
                              "train.batch=16", several_epochs ? "train.epochs=2" : "train.epochs=1",
                              "optimizer.learning_rate=0.0001", "run.busy_below=1"}));
    const Json event = event_of(run_shell(on_one_core() + command), workplace.path("run"), "data", 1);
    EXPECT_EQ(event["key"], several_epochs ? "data.loader" : "data.loader_threads") << event;
    EXPECT_EQ(event["value"], several_epochs ? "preload" : "0") << event;
  }
}

// One sample a step: almost all memory reads are weights.
TEST(IdleProgram, BatchesOfOneAreSmallWork) {
  const Workplace workplace("idle_small");
  const ProgramResult result = run_shell(
      workplace.train(with({"train.batch=1", "train.steps=200", "run.peak_below=1", "run.busy_below=0.01"})));
  const std::vector<Json> events = events_in(workplace.path("run"));
  const auto is_told = [](const Json& event) { return event["cause"] == "small_work"; };
  if (result.exit_code == 0 && std::ranges::none_of(events, is_told)) {
    NEEDS_QUIET_CORES();  // where other programs take the cores, such short steps mostly wait for one
  }
  const Json event = event_of(result, workplace.path("run"), "small_work", 1);
  EXPECT_EQ(event["key"], "train.batch");
  EXPECT_GE(std::stoi(event["value"].get<std::string>()), 2) << event;
}

// Half of its layers compute no matrix products.
TEST(IdleProgram, MemoryBoundNetworkIsArchitecture) {
  const Workplace workplace("idle_network", "lockstep", 32);
  const ProgramResult result =
      run_shell(workplace.train(with({"model.name=mobilenet_v2", "train.batch=16", "train.steps=18",
                                      "run.peak_below=1", "run.busy_below=0.01", "kernels.choose=direct"})));
  const Json event = event_of(result, workplace.path("run"), "architecture", 1);
  EXPECT_GT(event.value("lost_seconds", 0.0), 0) << event;
}

// An evaluation takes about 1,000 times as many samples as a step.
TEST(IdleProgram, EvaluationsAfterEachStepAreMonitoring) {
  const Workplace workplace("idle_evaluations");
  const ProgramResult result = run_shell(
      workplace.train(with({"train.steps=12", "run.metrics_every=1", "data.format=synthetic",
                            "data.synthetic.height=8", "data.synthetic.width=8", "data.synthetic.channels=1",
                            "data.synthetic.train_samples=640", "data.synthetic.test_samples=10240"})));
  const Json event = event_of(result, workplace.path("run"), "monitoring");
  EXPECT_EQ(event["key"], "run.metrics_every");
  EXPECT_GE(std::stoi(event["value"].get<std::string>()), 2) << event;
}

// strace makes the disk slow: each checkpoint takes much longer than a step.
TEST(IdleProgram, CheckpointsThatTrainingWaitsForAreMonitoring) {
  const std::string slowed = "strace -f -qq --seccomp-bpf -e trace=fsync -e inject=fsync:delay_enter=20000 ";
  if (run_shell(slowed + "true").exit_code != 0)
    GTEST_SKIP() << "strace is not installed, or may not trace here";
  const Workplace workplace("idle_checkpoints");
  const ProgramResult result = run_shell(slowed + "-o " + workplace.path("trace").string() + " " +
                                         workplace.train(with({"train.steps=12", "run.checkpoint_every=1"})));
  const Json event = event_of(result, workplace.path("run"), "monitoring");
  EXPECT_EQ(event["key"], "run.checkpoint_every");
  EXPECT_GE(std::stoi(event["value"].get<std::string>()), 2) << event;
}

// A training without problems causes no events, and users can disable them.
TEST(IdleProgram, DisabledEventsAreNotReported) {
  const Workplace workplace("idle_quiet");
  const ProgramResult result = run_ranks(
      2, workplace.train(with({"train.steps=20", "run.busy_below=0"}), "--inject slow:rank=1,step=1,ms=40"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/events.jsonl")));
  EXPECT_FALSE(std::regex_search(result.output, kStepRange)) << result.output;
}

}  // namespace
}  // namespace lockstep
