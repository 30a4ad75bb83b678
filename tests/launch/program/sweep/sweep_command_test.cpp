// SPDX-License-Identifier: Apache-2.0
//
// `lockstep sweep` from the user's view: what it trains and writes, how it resumes, what it refuses.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// A sweep over the workplace's configuration in the folder "sweep".
class SweepPlace {
 public:
  explicit SweepPlace(const std::string& name, const std::string& program = "lockstep")
      : workplace_(name, program), program_(program) {}

  std::filesystem::path path(const std::string& name) const { return workplace_.path(name); }
  std::filesystem::path folder() const { return path("sweep"); }
  std::filesystem::path folder_of(int trial) const { return folder() / fmt::format("trials/{:04}", trial); }
  // The command of a sweep with these lines in [sweep], after config and dir, and these in [keys].
  std::string command(const std::string& sweep, const std::string& keys) const {
    std::ofstream(path("sweep.toml"))
        << fmt::format("[sweep]\nconfig = \"{}\"\ndir = \"{}\"\n{}\n[keys]\n{}\n",
                       path("config.toml").string(), folder().string(), sweep, keys);
    return fmt::format("{} sweep {}", program(program_), path("sweep.toml").string());
  }
  std::vector<nlohmann::json> events() const { return json_lines_of(folder() / "sweep.jsonl"); }
  int events_of(const std::string& kind, int trial) const {
    int found = 0;
    for (const nlohmann::json& event : events())
      found += event.value("event", "") == kind && event.value("trial", -1) == trial;
    return found;
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

// The last line of the text that contains the part; empty without one.
std::string last_line_with(const std::string& text, const std::string& part) {
  const std::size_t at = text.rfind(part);
  if (at == std::string::npos) return {};
  const std::size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

// The checkpoint that a trial saved when SIGTERM stopped it, as the end of its path; empty without one.
std::string saved_when_stopped(const std::filesystem::path& trial) {
  const std::string line = last_line_with(text_of(trial / "output.txt"), "SIGTERM");
  std::smatch found;
  return std::regex_search(line, found, std::regex(R"(checkpoints/step-\d+)")) ? found.str() : "";
}

// Expects that the jobs of a trial resumed from these checkpoints, in this order, and that none of them moved
// the files of an earlier one aside, as a job does that starts a new training.
void expect_trial_resumed(const std::filesystem::path& trial, const std::vector<std::string>& checkpoints) {
  const std::string output = text_of(trial / "output.txt");
  const std::string resumes = lines_naming(output, "training resumes");
  EXPECT_EQ(count(resumes, "\n"), static_cast<int>(checkpoints.size())) << output;
  expect_in_order(resumes, checkpoints);
  for (const char* name : {"checkpoints.1", "metrics.1.jsonl"})
    EXPECT_FALSE(std::filesystem::exists(trial / name)) << name << ":\n" << output;
}

TEST(Sweep, GridTrainsEverySettingAndWritesItsResults) {
  const SweepPlace place("sweep_grid");
  const std::string keys = "train.batch = [8, 16]\noptimizer.learning_rate = [1e-6, 0.02]";
  const std::string sweep = place.command("method = \"grid\"\njobs = 2", keys);
  const ProgramResult printed = run_shell(sweep + " --print");
  EXPECT_EQ(count(printed.output, "optimizer.learning_rate="), 4) << printed.output;
  EXPECT_FALSE(std::filesystem::exists(place.folder())) << "nothing is trained";

  ProgramResult result = run_shell(sweep);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find('\r'), std::string::npos) << "a bar in piped output";
  expect_parts(result.output, {"4 trials", "accuracy", (place.folder() / "best.toml").string()});
  // Each trial is printed when it ends, and in the table.
  EXPECT_EQ(count(result.output, "optimizer.learning_rate="), 8) << result.output;
  const std::string csv = text_of(place.folder() / "trials.csv");
  EXPECT_EQ(count(csv, "\n"), 5) << csv;
  EXPECT_EQ(count(csv, ",complete,1,"), 4) << csv;
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

  const ProgramResult changed = run_shell(place.command(
      "method = \"grid\"\njobs = 2", "train.batch = [8, 32]\noptimizer.learning_rate = [1e-6, 0.02]"));
  expect_failure(changed, exit_code::config, {"[8, 16]", "[8, 32]"});
  expect_parts(changed.output, {"train.batch", (place.folder() / "sweep.jsonl").string(), "dir"});

  // Another sweep in the same folder: trial 0 still has a checkpoint and metrics of the first sweep.
  std::filesystem::remove(place.folder() / "sweep.jsonl");
  const ProgramResult other = run_shell(place.command("method = \"grid\"", "train.batch = [32]"));
  EXPECT_EQ(other.exit_code, 0) << other.output;
  EXPECT_EQ(count(text_of(place.folder() / "trials.csv"), ",complete,1,16,"), 1);
}

// One step with this rate leaves parameters whose products overflow.
TEST(Sweep, TrialWhoseTestLossIsNotFiniteSaysSo) {
  const SweepPlace place("sweep_not_finite");
  const ProgramResult result = run_shell(
      place.command("method = \"grid\"\nset = [\"train.batch=512\", \"train.epochs=3\", \"train.steps=1\"]",
                    "optimizer.learning_rate = [0.02, 1e30]"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(result.output, "after 1 of 1 epoch,"), 1) << result.output;
  const std::string csv = text_of(place.folder() / "trials.csv");
  EXPECT_EQ(count(csv, ",failed,"), 1) << csv;
  EXPECT_EQ(count(csv, "test loss"), 1) << csv;
}

// A rung changes neither the schedule nor a bit: training in parts equals training without interruption. A
// finished sweep is not continued on more slots, as the checkpoints of its trials are removed.
TEST(Sweep, HalvingFindsTheOnlyRateThatLearnsInFewerSteps) {
  const SweepPlace place("sweep_halving");
  const auto sweep = [&](const std::string& jobs) {
    return run_shell(
        place.command(jobs + "\nmethod = \"halving\"\nepochs = 9\neta = 3\nset = [\"schedule.name=cosine\", "
                             "\"train.batch=16\"]",
                      "optimizer.learning_rate = [1e-9, 1e-8, 3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 0.02, 1e-5]") +
        " --json");
  };
  const ProgramResult result = sweep("jobs = 2");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto outcome = json_of(result);
  ASSERT_TRUE(outcome.is_object()) << result.output;
  const auto& best = outcome["trials"][0];
  EXPECT_EQ(best["settings"]["optimizer.learning_rate"], "0.02");
  EXPECT_EQ(best["epochs"], 9);
  EXPECT_LT(2 * outcome["steps"].get<int>(), outcome["steps_of_all"].get<int>());
  EXPECT_EQ(outcome["slots"], 2);
  EXPECT_GT(outcome["busy_share"].get<double>(), 0);
  EXPECT_EQ(outcome["steps_of_all"], 9 * 9 * 512 / 16);
  EXPECT_GE(place.events_of("start", best["trial"]), 3) << "1, 3 and 9 epochs";
  for (int trial = 0; trial < 9; ++trial) {
    const int jobs = place.events_of("start", trial);
    ASSERT_GE(jobs, 1) << trial;
    std::vector<std::string> from = {"checkpoints/step-000000032", "checkpoints/step-000000096"};
    from.resize(static_cast<std::size_t>(jobs - 1));
    expect_trial_resumed(place.folder_of(trial), from);
  }

  const std::string train = program("lockstep") + " train " + (place.folder() / "best.toml").string();
  const ProgramResult whole = run_shell(train);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const auto line = last_metrics_of(place.folder() / "best");
  EXPECT_EQ(line["test_loss"], best["loss"]);
  EXPECT_EQ(line["test_accuracy"], best["accuracy"]);

  const auto again = json_of(sweep("jobs = 9"));
  ASSERT_TRUE(again.is_object());
  EXPECT_EQ(again["jobs"], 0);
  EXPECT_EQ(again["best"], outcome["best"]);
}

// Each trial is held in its first evaluation. Until two trials have ended, held ones are released. The kill
// comes while another trial is held.
TEST(Sweep, ResumesAfterAKill) {
  const SweepPlace place("sweep_killed");
  constexpr int kTrials = 6;  // at most four end before the kill
  const std::string sweep =
      place.command("method = \"grid\"\njobs = 2\nepochs = 2", "train.seed = [1, 2, 3, 4, 5, 6]");
  const std::string hold = place.path("hold").string();
  std::filesystem::create_directory(hold);
  const std::string two_ended_one_held = fmt::format(
      "if [ \"$(grep -c '\"end\"' {0} 2>/dev/null)\" -ge 2 ]; then [ -e {1}/trial ]; else ! rm -f {1}/trial; "
      "fi",
      (place.folder() / "sweep.jsonl").string(), hold);
  // The end of the sweep sends its trials SIGTERM. Then the folder's new name releases all trials and lets
  // none be held again.
  sweep_disturbed(fmt::format("LOCKSTEP_HOLD=evaluation:0:{}/trial {}", hold, sweep), two_ended_one_held,
                  fmt::format("kill -KILL $run\nwait $run\nmv {0} {0}.gone", hold));
  std::vector<int> ended;
  for (int trial = 0; trial < kTrials; ++trial)
    if (place.events_of("end", trial) == 1) ended.push_back(trial);
  ASSERT_GE(ended.size(), 2u);
  ASSERT_LT(ended.size(), static_cast<std::size_t>(kTrials));
  // The state after a power failure in the middle of a line.
  std::ofstream(place.folder() / "sweep.jsonl", std::ios::app) << "{\"event\":\"end\",\"tri";

  const ProgramResult result = run_shell(sweep);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_parts(result.output, {fmt::format(" {} epochs", 2 * ended.size())});
  for (int trial = 0; trial < kTrials; ++trial) EXPECT_EQ(place.events_of("end", trial), 1) << trial;
  for (const int trial : ended) EXPECT_EQ(place.events_of("start", trial), 1) << trial;
  int resumed = 0;  // SIGTERM ends a job that has just started without saving
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::string saved = saved_when_stopped(place.folder_of(trial));
    if (saved.empty()) continue;
    expect_trial_resumed(place.folder_of(trial), {saved});
    ++resumed;
  }
  EXPECT_GE(resumed, 1) << "the held trial saved its state: " << result.output;
}

// The trial would otherwise resume from the checkpoints in the folder.
TEST(Sweep, FolderOfAnotherSweepThatCannotBeRemovedEndsIt) {
  if (run_shell("unshare --mount mount -t tmpfs own /dev/shm").exit_code != 0)
    GTEST_SKIP() << "needs root, to mount";
  const SweepPlace place("sweep_mounted");
  const std::string trial = (place.folder() / "trials/0000").string();
  std::filesystem::create_directories(trial);
  const std::string sweep = place.command("method = \"grid\"\njobs = 1", "train.seed = [1]");
  const ProgramResult result = run_shell(fmt::format(
      "unshare --mount sh -c 'mount -t tmpfs own {0} && touch {0}/trial.toml && exec {1}'", trial, sweep));
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
  expect_parts(last_line_with(result.output, "lockstep: "), {trial});
  EXPECT_EQ(place.events_of("start", 0), 0);
}

// The workplace saves nothing by time, and ranks on a ring cannot save by steps.
TEST(Sweep, TrialsOnARingAreSaved) {
  const SweepPlace place("sweep_ring");
  const ProgramResult result = run_shell(place.command(
      "method = \"grid\"\njobs = 1\nranks = 2\nset = [\"comm.topology=ring\"]", "train.seed = [1]"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_FALSE(std::filesystem::is_empty(place.folder() / "trials/0000/checkpoints"));
}

// Jobs of mpirun that start and end in a common folder of Open MPI can fail; a rank without mpirun uses none.
TEST(Sweep, EachSlotHasItsOwnFolderForOpenMpi) {
  const SweepPlace place("sweep_folders");
  const std::string base = place.path("mpi").string();
  const std::string blocked = fmt::format(
      "export OMPI_MCA_orte_tmpdir_base={0}\nmkdir {0} 2>/dev/null\ntouch {0}/ompi.$(hostname -s).$(id -u)\n",
      base);
  if (run_shell(blocked + "mpirun -np 1 true").exit_code == 0)
    GTEST_SKIP() << "this MPI does not use the folder of Open MPI 4";
  const ProgramResult alone = run_shell(
      blocked + fmt::format("{} train {}", program("lockstep"), place.path("config.toml").string()));
  EXPECT_EQ(alone.exit_code, 0) << alone.output;
  const ProgramResult result =
      run_shell(blocked + place.command("method = \"grid\"\njobs = 2\nranks = 2", "train.seed = [1, 2]"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (int trial = 0; trial < 2; ++trial) EXPECT_EQ(place.events_of("end", trial), 1) << result.output;
  const std::filesystem::directory_iterator left(base);
  EXPECT_EQ(std::distance(begin(left), end(left)), 1) << "the folders of the slots are removed";
}

// Searches fields of described layers and the number of blocks, and shows the cost of each network.
TEST(Sweep, SearchesOverTheLayersOfANetwork) {
  const SweepPlace place("sweep_layers");
  const auto sweep = [&](const std::string& keys) {
    const std::string command = place.command("method = \"grid\"\njobs = 2\nset = [\"train.steps=4\"]", keys);
    const std::string model = "[model]\nname = \"mlp\"\n";
    std::string text = text_of(place.path("config.toml"));
    if (text.starts_with(model)) {
      std::ofstream(place.path("config.toml")) << text.substr(model.size()) << R"(
[[model.layer]]
kind = "block"
repeat = 1
residual = true
[[model.layer.layer]]
kind = "convolution"
channels = 4
kernel = 3
padding = "same"
[[model.layer]]
kind = "dense"
features = 8
activation = "relu"
[[model.layer]]
kind = "dense"
)";
    }
    return run_shell(command);
  };
  const ProgramResult wrong = sweep(
      "model.layer.fc1.features = [4, 0]\nmodel.layer.fc3.features = [1]\n"
      "\"model.layer.fc1.activation\" = { min = 1, max = 2 }");
  EXPECT_EQ(wrong.exit_code, exit_code::config) << wrong.output;
  expect_parts(wrong.output, {"model.layer.fc1.features=0", "fc3", "model.layer.fc1.activation"});

  const ProgramResult result = sweep(
      "model.layer.block1.repeat = { min = 1, max = 2, points = 2 }\n"
      "model.layer.block1.conv1.kernel = [1, 3]\n\"model.layer.fc1.activation\" = [\"gelu\"]");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_parts(result.output, {"parameters", "MFLOP"});
  std::map<std::pair<std::string, std::string>, std::int64_t> parameters;
  for (const nlohmann::json& event : place.events()) {
    if (event.value("event", "") != "end") continue;
    const auto config =
        text_of(place.folder() / fmt::format("trials/{:04}/trial.toml", event["trial"].get<int>()));
    const auto has = [&](const char* part) { return config.find(part) != std::string::npos; };
    EXPECT_TRUE(has("activation = \"gelu\"")) << config;
    EXPECT_GT(event["flops_per_sample"].get<std::int64_t>(), 0);
    parameters[{has("repeat = 2") ? "2" : "1", has("channels = 4, kernel = 3") ? "3" : "1"}] =
        event["parameters"].get<std::int64_t>();
  }
  ASSERT_EQ(parameters.size(), 4u) << result.output;
  // A second block has 4 -> 4 channels and no projection.
  EXPECT_EQ((parameters[{"2", "3"}] - parameters[{"1", "3"}]), 4 * 4 * 9 + 4);
  EXPECT_EQ((parameters[{"1", "3"}] - parameters[{"1", "1"}]), 4 * 8);
}

TEST(Sweep, FailedTrialIsReportedAndStopsNoOther) {
  const SweepPlace place("sweep_failing");
  const ProgramResult result =
      run_shell(place.command("method = \"grid\"\njobs = 2\nset = [\"data.mixup=0.2\"]",
                              "train.batch = [8, 7]\noptimizer.learning_rate = [1e30, 0.02]"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::map<int, std::string> problems;  // by trial
  for (const nlohmann::json& event : place.events())
    if (event.value("event", "") == "failure")
      problems[event["trial"].get<int>()] = event["problem"].get<std::string>();
  ASSERT_EQ(problems.size(), 3u) << result.output;
  EXPECT_TRUE(std::regex_search(problems[0], std::regex(R"(\bstep \d+)"))) << problems[0];
  expect_parts(problems[0], {"optimizer.learning_rate"});
  EXPECT_TRUE(std::filesystem::exists(place.folder() / "trials/0000/checkpoints")) << problems[0];
  for (const int odd : {2, 3}) expect_parts(problems[odd], {"data.mixup", "train.batch"});
  // Each problem is reported when it happens, and in the table.
  EXPECT_EQ(count(result.output, problems[0]), 2) << result.output;
  EXPECT_EQ(count(result.output, problems[2]), 4) << result.output;
  expect_parts(result.output,
               {(place.folder() / "best.toml").string(), (place.folder() / "trials/0001").string()});
  EXPECT_EQ(count(text_of(place.folder() / "trials.csv"), ",failed,"), 3);

  const SweepPlace hopeless("sweep_hopeless");
  const ProgramResult failed =
      run_shell(hopeless.command("method = \"grid\"\nset = [\"data.path=/nowhere\"]", "train.seed = [1, 2]"));
  EXPECT_EQ(failed.exit_code, exit_code::failed) << failed.output;
  expect_parts(last_line_with(failed.output, "lockstep: "), {"trial ", "/nowhere"});
}

TEST(Sweep, StopsOnASignalAndResumesFromCheckpoints) {
  const SweepPlace place("sweep_stopped");
  const std::string sweep =
      place.command("method = \"grid\"\njobs = 2\nepochs = 100000", "train.seed = [1, 2]");
  const auto trained = [&](int trial) {
    return fmt::format("[ -s {}/trials/000{}/metrics.jsonl ]", place.folder().string(), trial);
  };
  const ProgramResult stopped = sweep_disturbed(sweep, trained(0) + " && " + trained(1), "kill -TERM $run");
  EXPECT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  expect_parts(last_line_with(stopped.output, "SIGTERM"), {"resume"});
  EXPECT_EQ(count(stopped.output, sweep + "\n"), 1) << stopped.output;
  std::vector<std::string> saved, metrics;  // by trial
  for (int trial = 0; trial < 2; ++trial) {
    const auto run = place.folder_of(trial);
    const std::string output = text_of(run / "output.txt");
    expect_parts(last_line_with(output, "SIGTERM"), {" step ", (run / "checkpoints/step-").string()});
    EXPECT_EQ(place.events_of("end", trial), 0);
    saved.push_back(saved_when_stopped(run));
    metrics.push_back(text_of(run / "metrics.jsonl"));
    std::filesystem::remove(run / "output.txt");
  }

  // A trial prints the path of a checkpoint, whether it resumes from it or saves it in a new training.
  const auto names_one = [&](int trial) {
    return fmt::format("grep -sq checkpoints/step- {}", (place.folder_of(trial) / "output.txt").string());
  };
  const ProgramResult again = sweep_disturbed(sweep, names_one(0) + " && " + names_one(1), "kill -HUP $run");
  EXPECT_EQ(again.exit_code, exit_code::resumable) << again.output;
  for (int trial = 0; trial < 2; ++trial) {
    const auto run = place.folder_of(trial);
    expect_trial_resumed(run, {saved.at(static_cast<std::size_t>(trial))});
    EXPECT_TRUE(text_of(run / "metrics.jsonl").starts_with(metrics.at(static_cast<std::size_t>(trial))));
  }
}

// A trial that is stopped in the evaluation of its last epoch has no step left when it is resumed.
TEST(Sweep, ResumedTrialHasTheSpeedOfItsWholeEpochAndTheTimeOfAllItsJobs) {
  const SweepPlace place("sweep_speed");
  const std::string sweep = place.command(
      "method = \"grid\"\njobs = 1\nepochs = 1\nobjective = \"samples_per_second\"", "train.seed = [1]");
  const std::string hold = place.path("hold").string();
  const std::string output = (place.folder_of(0) / "output.txt").string();
  const ProgramResult stopped = run_shell(fmt::format(
      "LOCKSTEP_HOLD=evaluation:0:{0} {1} & run=$!\n{2}kill -TERM $run\n{3}rm {0}\nwait $run", hold, sweep,
      wait_until(fmt::format("[ -e {} ]", hold)), wait_until(fmt::format("grep -sq SIGTERM {}", output))));
  ASSERT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  ASSERT_EQ(place.events_of("end", 0), 0) << stopped.output;
  EXPECT_EQ(place.events_of("interrupted", 0), 1) << stopped.output;
  const ProgramResult again = run_shell(sweep + " --json");
  ASSERT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(place.events_of("end", 0), 1);
  expect_trial_resumed(place.folder_of(0), {"checkpoints/step-000000064"});
  double seconds = 0;
  for (const nlohmann::json& event : place.events()) {
    seconds += event.value("seconds", 0.0);
    if (event.value("event", "") == "end") {
      EXPECT_GT(event.at("samples_per_second"), 0) << event;
    }
  }
  const auto outcome = json_of(again);
  ASSERT_TRUE(outcome.is_object()) << again.output;
  EXPECT_DOUBLE_EQ(outcome["trials"][0]["seconds"].get<double>(), seconds);
}

TEST(Sweep, HeaderCountsTheEpochsOfEachTrial) {
  const SweepPlace place("sweep_epochs");
  for (const auto& [set, epochs] : std::map<std::string, std::string>{
           {"", " 7 epochs"}, {"train.until_epoch=3", " 5 epochs"}, {"train.steps=9", "at most 7 epochs"}}) {
    const std::string settings = set.empty() ? "" : fmt::format("\nset = [\"{}\"]", set);
    const ProgramResult result =
        run_shell(place.command("method = \"grid\"" + settings, "train.epochs = [2, 5]") + " --print");
    EXPECT_EQ(result.exit_code, 0) << result.output;
    expect_parts(result.output, {epochs});
  }
  const ProgramResult threads =
      run_shell(place.command("method = \"grid\"", "train.threads = [1, 2]") + " --print");
  EXPECT_EQ(threads.exit_code, 0) << threads.output;
  EXPECT_EQ(count(threads.output, " thread"), 0) << "trials differ in it: " << threads.output;
  const std::string reproducible = place.command(
      "method = \"grid\"\njobs = 1\nset = [\"train.reproducible=true\"]", "train.seed = [1, 2]");
  expect_parts(run_shell(reproducible + " --print").output, {" of 1 thread;"});
}

TEST(Sweep, BatchIsANumberAndMayBeARange) {
  const SweepPlace place("sweep_batch");
  const ProgramResult range = run_shell(
      place.command("method = \"random\"\ntrials = 3", "train.batch = { min = 4, max = 32 }") + " --print");
  EXPECT_EQ(range.exit_code, 0) << range.output;
  const ProgramResult automatic =
      run_shell(place.command("method = \"grid\"\nset = [\"train.batch=auto\"]", "train.seed = [1]"));
  EXPECT_EQ(automatic.exit_code, exit_code::config) << automatic.output;
  expect_parts(last_line_with(automatic.output, "lockstep: "), {"train.batch", "find-batch"});
  const SweepPlace mixed("sweep_batches");
  const ProgramResult of_both = run_shell(mixed.command("method = \"grid\"", "train.batch = [\"auto\", 8]"));
  EXPECT_EQ(of_both.exit_code, 0) << of_both.output;
  EXPECT_FALSE(std::filesystem::exists(mixed.folder() / "trials/0000/trial.toml"));
  expect_parts(of_both.output, {"train.batch = \"auto\""});
}

TEST(Sweep, TrialMayHaveSeveralRanks) {
  const SweepPlace place("sweep_ranks");
  const ProgramResult result =
      run_shell(place.command("method = \"random\"\ntrials = 2\njobs = 1\nranks = 2",
                              "optimizer.learning_rate = { min = 0.001, max = 0.1, scale = \"log\" }"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(text_of(place.folder() / "trials.csv"), ",complete,1,"), 2) << result.output;
  const auto facts = run_record(place.folder() / "trials/0000");
  EXPECT_EQ(facts["ranks"], 2);
  EXPECT_EQ(facts["global_batch"], 2 * 8);
  const std::string best = (place.folder() / "best.toml").string();
  expect_parts(result.output, {" train --ranks 2 " + best});
  expect_parts(text_of(best), {"2 ranks"});
  const ProgramResult launched = run_ranks(2, place.command("", "train.batch = [8]"));
  EXPECT_EQ(launched.exit_code, exit_code::usage) << launched.output;
  EXPECT_TRUE(std::regex_search(launched.output, std::regex(R"(sweep\W+ranks\b)"))) << launched.output;
}

TEST(Sweep, HalvingRefusesAnEarlierEndOfEachTrial) {
  const SweepPlace place("sweep_until");
  const ProgramResult result =
      run_shell(place.command("method = \"halving\"\nset = [\"train.until_epoch=1\"]", "train.seed = [1]") +
                " --print");
  expect_failure(result, exit_code::config, {"train.until_epoch"});
}

// The base may have a run.dir, as every configuration of a training.
TEST(Sweep, RefusesAnOverrideOfTheFolderOfTrials) {
  const SweepPlace place("sweep_set_dir");
  const std::string keys = "train.batch = [8]";
  for (const char* override_text : {"run.dir=elsewhere", " run.dir = elsewhere"}) {
    const ProgramResult result = run_shell(
        place.command(fmt::format("method = \"grid\"\nset = [\"{}\"]", override_text), keys) + " --print");
    expect_failure(result, exit_code::config, {"sweep.toml:5", "set dir"});
  }
  const ProgramResult allowed = run_shell(place.command("method = \"grid\"", keys) + " --print");
  EXPECT_EQ(allowed.exit_code, exit_code::done) << allowed.output;
}

TEST(Sweep, AllErrorsOfAFileAreReportedAtOnce) {
  const SweepPlace place("sweep_wrong");
  const std::string sweep = place.command(
      "method = \"halvng\"\njobs = -1\nepoch = 3\nset = [\"train.bach=3\", \"run.event_command=curl token\"]",
      "train.batch = [8, 0]\ntrain.bach = [3]\nrun.dir = [\"x\"]\nmodel.name = { min = 1, max = 2 }\n"
      "optimizer.learning_rate = { min = 0, max = 1, scale = \"log\" }\ntrain.seed = []\n"
      "optimizer.momentum = { min = 0, max = 0.9, scale = 1 }\n\"train.batch\" = [16]\n"
      "optimizer.weight_decay = { min = 0, max = 1, points = true }");
  const ProgramResult refused = run_shell(sweep);
  EXPECT_EQ(refused.exit_code, exit_code::config) << refused.output;
  const std::map<int, std::vector<std::string>> parts_of_line = {
      {4, {"sweep.method", "\"halvng\"", "grid", "random"}},
      {5, {"sweep.jobs = -1"}},
      {6, {"sweep.epoch"}},
      {7, {"sweep.set", "run.event_command", "LOCKSTEP_EVENT_COMMAND"}},
      {9, {"train.batch = 0", "1048576"}},
      {10, {"train.bach", "train.batch"}},
      {11, {"run.dir"}},
      {12, {"model.name"}},
      {13, {"optimizer.learning_rate"}},
      {14, {"train.seed = []"}},
      {15, {"optimizer.momentum", "\"log\""}},
      {16, {"train.batch"}},
      {17, {"optimizer.weight_decay", "points"}}};
  std::map<int, std::string> lines;
  for (const auto& [number, parts] : parts_of_line) {
    const std::string where = fmt::format("sweep.toml:{}:", number);
    EXPECT_EQ(count(refused.output, where), 1) << where << " in:\n" << refused.output;
    lines[number] = last_line_with(refused.output, where);
    expect_parts(lines[number], parts);
  }
  // Allowed words are listed, and the nearest one is suggested.
  EXPECT_EQ(count(lines[4], "halving"), 2) << lines[4];
  EXPECT_EQ(count(lines[6], "epochs"), 3) << "min_epochs, too: " << lines[6];
  EXPECT_EQ(count(refused.output, "token"), 0) << "a secret: " << refused.output;
  EXPECT_FALSE(std::filesystem::exists(place.folder()));
  const std::string folder = place.path("run").parent_path().string();
  for (const std::string& unreadable : {std::string("nowhere.toml"), folder})
    expect_failure(run_shell(program("lockstep") + " sweep " + unreadable), exit_code::io, {unreadable});
  expect_failure(run_shell(place.command("method = \"grid\"", "train.batch = [8\n")), exit_code::config,
                 {"sweep.toml:"});
}

TEST(Sweep, RefusesTheConfigurationOfATrainingWithOneError) {
  const SweepPlace place("sweep_of_training");
  const std::string config = place.path("config.toml").string();
  const ProgramResult result = run_shell(program("lockstep") + " sweep " + config);
  expect_failure(result, exit_code::config, {"lockstep train " + config, "[sweep]", "[keys]"});
  EXPECT_EQ(count(result.output, config + ":"), 0) << "an error for a section: " << result.output;
}

TEST(Sweep, FitsATerminalAndShowsProgress) {
  const SweepPlace place("sweep_terminal");
  const ProgramResult result = run_on_terminal(
      place.command("method = \"grid\"\njobs = 1\nepochs = 6",
                    "train.batch = [8]\noptimizer.learning_rate = [0.001, 0.002]\nmodel.mlp.width = [64]"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(std::regex_search(result.output, std::regex(R"(sweep +\[[#.]+\])"))) << result.output;
  // The command after it has its own line, however long the program's path is.
  const std::size_t end = result.output.find("To train it:");
  ASSERT_NE(end, std::string::npos) << result.output;
  EXPECT_LE(longest_line(result.output.substr(0, end)), 80u) << result.output;
}

// After a kill between the end of a trial and its record, the next start trains no epoch.
TEST(Sweep, ProgressCountsOnlyTheEpochsOfThisStart) {
  const SweepPlace place("sweep_progress");
  const std::string sweep = place.command("method = \"grid\"\njobs = 1\nepochs = 2", "train.seed = [1]");
  const ProgramResult first = run_shell(sweep);
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const std::filesystem::path journal = place.folder() / "sweep.jsonl";
  const std::string events = text_of(journal);
  const std::size_t end = events.find("{\"event\":\"end\"");
  ASSERT_NE(end, std::string::npos) << events;
  std::ofstream(journal) << events.substr(0, end);
  const ProgramResult again = run_on_terminal(sweep);
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(place.events_of("end", 0), 1);
  EXPECT_TRUE(std::regex_search(again.output, std::regex(R"(\]  0/0\b)"))) << again.output;
}

}  // namespace
}  // namespace lockstep
