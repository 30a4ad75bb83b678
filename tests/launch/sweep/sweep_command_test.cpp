// SPDX-License-Identifier: Apache-2.0
//
// `lockstep sweep` from the user's view: what it trains and writes, how it resumes, what it refuses.
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program.h"

namespace lockstep {
namespace {

// A sweep over the workplace's configuration in the folder "sweep".
class SweepPlace {
 public:
  explicit SweepPlace(const std::string& name, const std::string& program = "lockstep")
      : workplace_(name, program), program_(program) {}

  std::filesystem::path path(const std::string& name) const { return workplace_.path(name); }
  std::filesystem::path folder() const { return path("sweep"); }
  // The command of a sweep with these lines in [sweep], after config and dir, and these in [keys].
  std::string command(const std::string& sweep, const std::string& keys) const {
    std::ofstream(path("sweep.toml"))
        << fmt::format("[sweep]\nconfig = \"{}\"\ndir = \"{}\"\n{}\n[keys]\n{}\n",
                       path("config.toml").string(), folder().string(), sweep, keys);
    return fmt::format("{} sweep {}", program(program_), path("sweep.toml").string());
  }
  std::vector<nlohmann::json> events() const {
    std::vector<nlohmann::json> events;
    std::ifstream file(folder() / "sweep.jsonl");
    for (std::string line; std::getline(file, line);) events.push_back(nlohmann::json::parse(line));
    return events;
  }
  int events_of(const std::string& kind, int trial) const {
    int found = 0;
    for (const nlohmann::json& event : events())
      found += event.value("event", "") == kind && event.value("trial", -1) == trial;
    return found;
  }
  nlohmann::json last_line_of(const std::filesystem::path& run) const {
    std::istringstream lines(text_of(run / "metrics.jsonl"));
    std::string line, last;
    while (std::getline(lines, line)) last = line;
    return nlohmann::json::parse(last);
  }

 private:
  Workplace workplace_;
  std::string program_;
};

// Starts the command, runs the shell lines `what` on its process, $run, when the condition holds, and returns
// how it ended.
ProgramResult sweep_disturbed(const std::string& command, const std::string& condition,
                              const std::string& what) {
  return run_shell(fmt::format("{} & run=$!\n{}{}\nwait $run", command, wait_until(condition), what));
}

nlohmann::json json_of(const ProgramResult& result) {
  return nlohmann::json::parse(result.output, nullptr, false);
}

TEST(Sweep, AGridTrainsEverySettingAndWritesWhatItFound) {
  const SweepPlace place("sweep_grid");
  const std::string keys = "train.batch = [8, 16]\noptimizer.learning_rate = [1e-6, 0.02]";
  const std::string sweep = place.command("method = \"grid\"\njobs = 2", keys);
  const ProgramResult printed = run_shell(sweep + " --print");
  EXPECT_EQ(count(printed.output, "\ntrial "), 4) << printed.output;
  EXPECT_FALSE(std::filesystem::exists(place.folder())) << "nothing is trained";

  ProgramResult result = run_shell(sweep);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find('\r'), std::string::npos) << "a bar in piped output";
  for (const char* part : {"4 trials", "2 at once", "accuracy", "slots busy", "best.toml"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in\n" << result.output;
  EXPECT_EQ(count(result.output, "after 1 of 1 epoch,"), 4) << result.output;
  const std::string csv = text_of(place.folder() / "trials.csv");
  EXPECT_EQ(count(csv, "\n"), 5) << csv;
  EXPECT_EQ(count(csv, ",complete,"), 4) << csv;
  const std::string svg = text_of(place.folder() / "sweep.svg");
  EXPECT_EQ(count(svg, "<title>trial "), 4) << svg;
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);

  // The finished sweep starts no jobs.
  const auto again = json_of(run_shell(sweep + " --json"));
  ASSERT_TRUE(again.is_object());
  EXPECT_EQ(again["jobs"], 0);
  EXPECT_EQ(again["trials"].size(), 4u);
  const auto& best = again["trials"][0];
  EXPECT_EQ(best["trial"], again["best"]);
  EXPECT_EQ(best["settings"]["optimizer.learning_rate"], "0.02");
  EXPECT_GT(best["accuracy"], again["trials"][3]["accuracy"]);
  for (int trial = 0; trial < 4; ++trial) EXPECT_EQ(place.events_of("start", trial), 1) << trial;

  expect_failure(run_shell(place.command("method = \"grid\"\njobs = 2",
                                         "train.batch = [8, 32]\noptimizer.learning_rate = [1e-6, 0.02]")),
                 exit_code::config, {"train.batch: [8, 16] against [8, 32]", "name another dir"});

  // Another sweep in the same folder: trial 0 still has a checkpoint and metrics of the first sweep.
  std::filesystem::remove(place.folder() / "sweep.jsonl");
  const ProgramResult other = run_shell(place.command("method = \"grid\"", "train.batch = [32]"));
  EXPECT_EQ(other.exit_code, 0) << other.output;
  EXPECT_EQ(count(text_of(place.folder() / "trials.csv"), ",complete,1,16,"), 1);
}

// A rung changes neither the schedule nor a bit: training in parts equals training without interruption.
TEST(Sweep, HalvingFindsTheOnlyRateThatLearnsInFewerSteps) {
  const SweepPlace place("sweep_halving");
  const ProgramResult result = run_shell(
      place.command("method = \"halving\"\njobs = 2\nepochs = 9\neta = 3\nset = [\"schedule.name=cosine\", "
                    "\"train.batch=16\"]",
                    "optimizer.learning_rate = [1e-9, 1e-8, 3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 0.02, 1e-5]") +
      " --json");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto outcome = json_of(result);
  ASSERT_TRUE(outcome.is_object()) << result.output;
  const auto& best = outcome["trials"][0];
  EXPECT_EQ(best["settings"]["optimizer.learning_rate"], "0.02");
  EXPECT_EQ(best["epochs"], 9);
  EXPECT_LT(2 * outcome["steps"].get<int>(), outcome["steps_of_all"].get<int>());
  EXPECT_EQ(outcome["steps_of_all"], 9 * 9 * 512 / 16);
  EXPECT_GE(place.events_of("start", best["trial"]), 3) << "1, 3 and 9 epochs";

  const std::string train = program("lockstep") + " train " + (place.folder() / "best.toml").string();
  const ProgramResult whole = run_shell(train);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const auto line = place.last_line_of(place.folder() / "best");
  EXPECT_EQ(line["test_loss"], best["loss"]);
  EXPECT_EQ(line["test_accuracy"], best["accuracy"]);
}

TEST(Sweep, GoesOnAfterItWasKilled) {
  const SweepPlace place("sweep_killed");
  constexpr int kTrials = 12;  // two of them end before the kill, and not all can
  const std::string sweep = place.command("method = \"grid\"\njobs = 2\nepochs = 3",
                                          "train.seed = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]");
  const std::string two_ended = fmt::format("[ \"$(grep -c '\"end\"' {} 2>/dev/null)\" -ge 2 ]",
                                            (place.folder() / "sweep.jsonl").string());
  sweep_disturbed(sweep, two_ended, "kill -KILL $run");
  std::vector<int> ended;
  for (int trial = 0; trial < kTrials; ++trial)
    if (place.events_of("end", trial) == 1) ended.push_back(trial);
  ASSERT_GE(ended.size(), 2u);
  ASSERT_LT(ended.size(), static_cast<std::size_t>(kTrials)) << "it was killed too late";
  // The state after a power failure in the middle of a line.
  std::ofstream(place.folder() / "sweep.jsonl", std::ios::app) << "{\"event\":\"end\",\"tri";

  const ProgramResult result = run_shell(sweep);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("were done before"), std::string::npos) << result.output;
  for (int trial = 0; trial < kTrials; ++trial) EXPECT_EQ(place.events_of("end", trial), 1) << trial;
  for (const int trial : ended) EXPECT_EQ(place.events_of("start", trial), 1) << trial;
}

TEST(Sweep, ATrialThatFailsIsToldAndStopsNothing) {
  const SweepPlace place("sweep_failing");
  const ProgramResult result =
      run_shell(place.command("method = \"grid\"\njobs = 2\nset = [\"data.mixup=0.2\"]",
                              "train.batch = [8, 7]\noptimizer.learning_rate = [1e30, 0.02]"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  // Each problem is reported when it happens, and in the table.
  EXPECT_EQ(count(result.output, "an even train.batch"), 4) << result.output;
  EXPECT_EQ(count(result.output, "not finite"), 2) << result.output;
  EXPECT_NE(result.output.find("the best, trial 1"), std::string::npos) << result.output;
  EXPECT_EQ(count(text_of(place.folder() / "trials.csv"), ",failed,"), 3);

  const SweepPlace hopeless("sweep_hopeless");
  expect_failure(
      run_shell(hopeless.command("method = \"grid\"\nset = [\"data.path=/nowhere\"]", "train.seed = [1, 2]")),
      exit_code::failed, {"no trial was trained to its end"});
}

TEST(Sweep, StopsWhenItIsAskedAndGoesOnFromCheckpoints) {
  const SweepPlace place("sweep_stopped");
  const std::string sweep =
      place.command("method = \"grid\"\njobs = 2\nepochs = 2000", "train.seed = [1, 2]");
  const auto trained = [&](int trial) {
    return fmt::format("[ -s {}/trials/000{}/metrics.jsonl ]", place.folder().string(), trial);
  };
  const ProgramResult stopped = sweep_disturbed(sweep, trained(0) + " && " + trained(1), "kill -TERM $run");
  EXPECT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  EXPECT_EQ(count(stopped.output, "SIGTERM: the sweep stopped"), 1) << stopped.output;
  for (int trial = 0; trial < 2; ++trial) {
    const auto run = place.folder() / fmt::format("trials/000{}", trial);
    EXPECT_EQ(count(text_of(run / "output.txt"), "SIGTERM: training stopped after step"), 1)
        << text_of(run / "output.txt");
    EXPECT_EQ(place.events_of("end", trial), 0);
  }

  const ProgramResult again = sweep_disturbed(
      sweep,
      fmt::format("grep -q 'training goes on after step' {}/trials/0000/output.txt", place.folder().string()),
      "kill -HUP $run");
  EXPECT_EQ(again.exit_code, exit_code::resumable) << again.output;
}

TEST(Sweep, ATrainingMayHaveSeveralRanks) {
  const SweepPlace place("sweep_ranks");
  const ProgramResult result =
      run_shell(place.command("method = \"random\"\ntrials = 2\njobs = 1\nranks = 2",
                              "optimizer.learning_rate = { min = 0.001, max = 0.1, scale = \"log\" }"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(result.output, "after 1 of 1 epoch,"), 2) << result.output;
  EXPECT_NE(text_of(place.folder() / "trials/0000/output.txt").find("2 ranks x batch 8"), std::string::npos);
  const ProgramResult launched = run_ranks(2, place.command("", "train.batch = [8]"));
  EXPECT_EQ(launched.exit_code, exit_code::usage) << launched.output;
  EXPECT_NE(launched.output.find("without a launcher"), std::string::npos) << launched.output;
}

TEST(Sweep, EverythingThatIsWrongWithAFileIsToldAtOnce) {
  const SweepPlace place("sweep_wrong");
  const std::string sweep = place.command(
      "method = \"halvng\"\njobs = -1\nepoch = 3\nset = [\"train.bach=3\"]",
      "train.batch = [8, 0]\ntrain.bach = [3]\nrun.dir = [\"x\"]\nmodel.name = { min = 1, max = 2 }\n"
      "optimizer.learning_rate = { min = 0, max = 1, scale = \"log\" }\ntrain.seed = []");
  expect_failure(run_shell(sweep), exit_code::config,
                 {"sweep.toml:4: sweep.method = \"halvng\": allowed are grid, random, halving; did you mean "
                  "halving?",
                  "sweep.toml:5: sweep.jobs = -1", "unknown key sweep.epoch; did you mean epochs?",
                  "sweep.toml:9: train.batch = 0: allowed are integers from 1 to 1048576",
                  "sweep.toml:10: unknown key train.bach; did you mean train.batch?",
                  "sweep.toml:11: run.dir: the sweep gives each trial its own", "sweep.toml:12: model.name",
                  "sweep.toml:13: optimizer.learning_rate", "sweep.toml:14: train.seed = []"});
  EXPECT_FALSE(std::filesystem::exists(place.folder()));
  expect_failure(run_shell(program("lockstep") + " sweep nowhere.toml"), exit_code::io, {"nowhere.toml"});
  expect_failure(run_shell(place.command("method = \"grid\"", "train.batch = [8\n")), exit_code::config,
                 {"sweep.toml:"});
}

TEST(Sweep, FitsATerminalAndShowsHowFarItIs) {
  const SweepPlace place("sweep_terminal");
  const ProgramResult result = run_on_terminal(
      place.command("method = \"grid\"\njobs = 1\nepochs = 6",
                    "train.batch = [8]\noptimizer.learning_rate = [0.001, 0.002]\nmodel.mlp.width = [64]"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("sweep  ["), std::string::npos) << result.output;
  EXPECT_LE(longest_line(result.output), 80u) << result.output;
}

}  // namespace
}  // namespace lockstep
