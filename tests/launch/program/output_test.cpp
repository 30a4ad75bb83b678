// SPDX-License-Identifier: Apache-2.0
//
// Where a run writes its output, and what happens when the destination accepts no more.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool says(const ProgramResult& result, const std::string& part) {
  return result.output.find(part) != std::string::npos;
}

// The number of lines that contain all parts.
int output_lines_with(const ProgramResult& result, const std::vector<std::string>& parts) {
  return count(lines_naming(result.output, parts), "\n");
}

void expect_output(const ProgramResult& result, const std::string& pattern) {
  EXPECT_TRUE(std::regex_search(result.output, std::regex(pattern))) << pattern << " in\n" << result.output;
}

Json last_metrics(const Workplace& workplace) { return last_metrics_of(workplace.path("run")); }

TEST(Output, NamesThePathOfEveryFile) {
  const Workplace workplace("places");
  const std::string start = workplace.path("start.safetensors").string();
  const std::vector<std::string> settings = {"train.steps=2"};
  ASSERT_EQ(run_shell(workplace.train(settings, "--export " + start)).exit_code, 0);
  const auto place = [&](const char* name) { return workplace.path(name).string(); };
  const ProgramResult result = run_ranks(
      2, workplace.train(settings, "--init " + start + " --export " + place("end.safetensors") +
                                       " --digest " + place("digest") + " --trace " + place("trace.json")));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const std::string& path : {(workplace.path("run") / "metrics.jsonl").string(), start,
                                  place("end.safetensors"), place("digest"), place("trace.json")})
    EXPECT_TRUE(says(result, path)) << path << " in\n" << result.output;
}

TEST(Output, LogLevelSelectsTheLines) {
  const Workplace workplace("log_level");
  const auto said = [&](const std::string& flags) {
    const ProgramResult result =
        run_shell(workplace.train({"train.steps=3", "comm.codec=fp16", "train.max_skipped_steps=1"},
                                  "--inject nan:rank=0,step=2 " + flags));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return std::pair(count(result.output, "info [rank 0]"),
                     output_lines_with(result, {"warning [rank", "step 2"}));
  };
  const auto plain = said(""), quiet = said("--log-level warning"), silent = said("--log-level error");
  EXPECT_GT(plain.first, 0);
  EXPECT_EQ(plain.second, 1) << "step 2 is skipped";
  EXPECT_EQ(quiet, std::pair(0, 1));
  EXPECT_EQ(silent, std::pair(0, 0));
}

// Runs a training in this folder. While its first step is held, replaces a file of the run by a link: the
// program never writes through links.
ProgramResult with_unwritable(const Workplace& workplace, const std::string& name,
                              const std::string& training) {
  const std::string held = workplace.path("held").string();
  return run_shell(workplace.script(
      fmt::format("LOCKSTEP_HOLD=step:0:{0} {1} & run=$!\n{2}ln -sf /dev/full {3}\nrm {0}\nwait $run", held,
                  training, wait_until("[ -e " + held + " ]"), (workplace.path("run") / name).string())));
}

// A failure to write metrics must not lose the weights of a long training.
TEST(Output, UnwritableMetricsDoNotPreventTheExport) {
  const Workplace workplace("full_metrics");
  const fs::path exported = workplace.path("end.safetensors");
  const ProgramResult result =
      with_unwritable(workplace, "metrics.jsonl",
                      on_ranks(2, workplace.train({"train.epochs=2"}, "--export " + exported.string())));
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
  const std::vector<std::string> steps = lines_of(text_of(workplace.path("run") / "steps.jsonl"));
  ASSERT_FALSE(steps.empty()) << result.output;
  EXPECT_EQ(Json::parse(steps.back())["epoch"], 2) << "training continues";
  const std::vector<std::string> lost = {"metrics.jsonl", "epoch", "1, 2", std::strerror(ELOOP)};
  EXPECT_EQ(output_lines_with(result, lost), 1) << result.output;
  EXPECT_EQ(tensors_of(exported).count("fc1.weight"), 1u);
}

TEST(Output, UnwritableStepsOrEventsDoNotEndTraining) {
  const std::pair<const char*, const char*> files[] = {{"steps.jsonl", "2 lines"},
                                                       {"tensorboard/events.", "4 events"}};
  for (const auto& [name, lost] : files) {
    const Workplace workplace("full_steps");
    const ProgramResult result = with_unwritable(workplace, std::string(name) + '*',
                                                 workplace.train({"train.epochs=2", "run.log_every=1000"}));
    EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
    for (const char* part : {"warning [rank 0]", lost})
      EXPECT_EQ(output_lines_with(result, {part, name, std::strerror(ELOOP)}), 1) << result.output;
    EXPECT_EQ(last_metrics(workplace).value("epoch", 0), 2);
  }
}

// The run's folder records what ran, so that a reader can run it again.
TEST(Output, RunFolderRecordsConfigurationAndMachine) {
  const Workplace workplace("record");
  const fs::path first = workplace.path("first"), again = workplace.path("again");
  ASSERT_EQ(
      run_ranks(2, workplace.train({"train.steps=4", "optimizer.momentum=0.5"}, "--digest " + first.string()))
          .exit_code,
      0);
  const Json facts = run_record(workplace.path("run"));
  EXPECT_EQ(facts["ranks"], 2);
  EXPECT_GT(facts["parameters"], 1000);
  const auto command = facts["command"].get<std::string>();
  EXPECT_EQ(count(command, "--set optimizer.momentum=0.5"), 1) << command;
  EXPECT_EQ(count(command, "--ranks"), 0) << "mpirun started the ranks: " << command;
  for (const char* fact : {"lockstep", "started", "host", "processor", "device", "backend"})
    EXPECT_FALSE(facts[fact].get<std::string>().empty()) << fact;
  const std::string toml = (workplace.path("run") / "config.toml").string();
  ASSERT_EQ(run_ranks(2, program("lockstep") + " train " + toml + " --digest " + again.string()).exit_code,
            0);
  EXPECT_EQ(text_of(first), text_of(again));
  EXPECT_FALSE(fs::exists(workplace.path("run") / "config.1.toml")) << "the configuration is unchanged";
  EXPECT_FALSE(fs::exists(workplace.path("run") / "run.1.json")) << "the machine is unchanged";
  ASSERT_EQ(run_shell(workplace.train({"train.steps=2"})).exit_code, 0);
  EXPECT_TRUE(fs::exists(workplace.path("run") / "config.1.toml")) << "a different one does not replace it";
  EXPECT_EQ(Json::parse(text_of(workplace.path("run") / "run.1.json"))["ranks"], 2);
}

// Links to a full device: root can write everywhere else.
TEST(Output, UnwritableFileDoesNotPreventTheOthers) {
  const Workplace workplace("not_written");
  const fs::path trace = workplace.path("trace"), exported = workplace.path("exported"),
                 digest = workplace.path("digest");
  for (const fs::path& full : {trace, exported}) fs::create_symlink("/dev/full", full);
  const ProgramResult result = run_shell(workplace.train(
      {"train.steps=2"},
      fmt::format("--trace {} --export {} --digest {}", trace.string(), exported.string(), digest.string())));
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
  const std::string saved = workplace.path("run/checkpoints/step-000000002").string();
  EXPECT_EQ(output_lines_with(result, {exported.string(), trace.string(), std::strerror(ENOSPC), saved}), 1)
      << result.output;
  EXPECT_EQ(text_of(digest).size(), 33u);
}

TEST(Output, ResultThatReplacesAnotherFileIsRefused) {
  const Workplace workplace("one_path");
  const std::string config = workplace.path("config.toml").string(), text = text_of(config),
                    file = workplace.path("file").string(), linked = workplace.path("link/file").string();
  fs::create_directory_symlink(".", workplace.path("link"));
  const auto train = [&](const std::string& flags) {
    return run_shell(workplace.train({"train.steps=2"}, flags));
  };
  const std::vector<std::pair<std::string, std::string>> replaced = {
      {"--export " + file + " --digest ", file},
      {"--export " + file + " --trace ", linked},
      {"--digest " + file + " --trace ", workplace.path("nowhere/../file").string()},
      {"--export ", config},
      {"--trace ", workplace.path("run/config.toml").string()},
      {"--digest ", workplace.path("link/run/metrics.jsonl").string()},
      {"--export ", workplace.path("run/best.safetensors").string()}};
  for (const auto& [flags, path] : replaced)
    expect_failure(train(flags + path), exit_code::usage, {path + " is "});
  EXPECT_EQ(text_of(config), text);
  EXPECT_FALSE(fs::exists(workplace.path("run"))) << "refused before the run begins";

  const ProgramResult devices = train("--digest /dev/null --trace /dev/null --export " + file);
  EXPECT_EQ(devices.exit_code, 0) << devices.output;
  const ProgramResult again = train("--init " + file + " --export " + file);
  EXPECT_EQ(again.exit_code, 0) << again.output;
  const std::string inside = workplace.path("run/own.safetensors").string();
  const ProgramResult in_run = train("--export " + inside);
  EXPECT_EQ(in_run.exit_code, 0) << in_run.output;
}

// `lockstep train .. | head`, whose reader exits before the first line.
TEST(Output, ClosedPipeDoesNotEndTraining) {
  const Workplace workplace("pipe");
  const fs::path exported = workplace.path("end.safetensors"), code = workplace.path("code");
  run_shell("{ " + workplace.train({"train.epochs=2"}, "--export " + exported.string()) +
            " 2>&1; echo $? > " + code.string() + "; } | true");
  EXPECT_EQ(text_of(code), "0\n");
  EXPECT_EQ(last_metrics(workplace).value("epoch", 0), 2);
  EXPECT_TRUE(fs::exists(exported));
}

// As some daemons start a program. Its files do not get the numbers of the closed descriptors.
TEST(Output, ClosedDescriptorsDoNotEndTraining) {
  for (const char* closed : {"<&- >&- 2>&-", ">&- 2>&-"}) {
    const Workplace workplace("closed");
    const ProgramResult result = run_shell(workplace.train({"train.steps=2"}, closed));
    EXPECT_EQ(result.exit_code, 0) << closed;
    EXPECT_EQ(result.output, "") << closed;
    EXPECT_EQ(last_metrics(workplace).value("steps", 0), 2) << closed;
  }
}

std::string lockstep(const std::string& arguments) { return program("lockstep") + " " + arguments; }

TEST(Output, ResultsThatCannotBeWrittenAreAnError) {
  const Workplace workplace("full_output");
  const std::string config = workplace.path("config.toml").string();
  for (const std::string& command :
       {"plan " + config, "train " + config + " --print-config", std::string("info"), std::string("keys")})
    for (const char* unwritable : {" > /dev/full", " >&-"})
      expect_failure(run_shell(lockstep(command) + unwritable), exit_code::io, {"standard output"});
}

TEST(Output, EveryLineOfATrainingFitsATerminal) {
  const Workplace workplace("columns");
  const std::string exported = workplace.path(std::string(60, 'x')).string();
  const ProgramResult result = run_on_terminal(lockstep(
      "train " + workplace.path("config.toml").string() +
      " --set model.name=resnet20 --set train.steps=3 --set kernels.cache=none " + "--export " + exported));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(says(result, "[###")) << "no terminal\n" << result.output;
  const std::vector<std::string> lines = lines_of(result.output);
  EXPECT_EQ(std::ranges::count(lines, "    " + exported), 1) << result.output;
  for (const std::string& line : lines) EXPECT_TRUE(line.size() <= 80 || line == "    " + exported) << line;
}

// A wrapped command would start a new training where it is pasted.
TEST(Output, TheCommandThatResumesIsOneLine) {
  const Workplace workplace("resume_line");
  const std::string held = workplace.path("held").string();
  const ProgramResult result = run_on_terminal(workplace.script(
      fmt::format("LOCKSTEP_HOLD=step:0:{0} {1} & run=$!\n{2}kill -USR1 $run\nrm {0}\nwait $run\n", held,
                  workplace.train({"train.epochs=100", "model.name=cnn", "run.checkpoint_every=1000"}),
                  wait_until("[ -e " + held + " ]"))));
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  const std::vector<std::string> lines = lines_of(result.output);
  const auto line_that = [&](const auto& fits) {
    const auto found = std::ranges::find_if(lines, fits);
    EXPECT_NE(found, lines.end()) << result.output;
    return found == lines.end() ? std::string() : *found;
  };
  line_that([](const std::string& line) { return line.starts_with("SIGUSR1: "); });  // not beside the bar
  const std::string command =
      line_that([](const std::string& line) { return line.ends_with("--resume auto"); });
  expect_parts(command, {build_folder().string(), " train ", "train.epochs=100"});
  EXPECT_GT(command.size(), 80u);
}

// Their paths have more columns than the terminal.
TEST(Output, TheCommandsOfASweepAreOneLine) {
  const Workplace workplace("sweep_lines");
  const std::string name(70, 'x'), file = workplace.path(name + ".toml").string(),
                                   held = workplace.path("held").string();
  const auto sweep = [&](int epochs) {
    std::ofstream(file) << fmt::format(
        "[sweep]\nconfig = \"{}\"\ndir = \"{}\"\nmethod = \"grid\"\nepochs = {}\n[keys]\ntrain.seed = [1]\n",
        workplace.path("config.toml").string(), workplace.path(name).string(), epochs);
    return lockstep("sweep " + file);
  };
  const ProgramResult done = run_on_terminal(sweep(1));
  ASSERT_EQ(done.exit_code, 0) << done.output;
  const std::string best = lockstep("train " + (workplace.path(name) / "best.toml").string());
  EXPECT_EQ(std::ranges::count(lines_of(done.output), best), 1) << done.output;

  fs::remove_all(workplace.path(name));
  const std::string command = sweep(100000);
  const ProgramResult stopped = run_on_terminal(workplace.script(
      fmt::format("LOCKSTEP_HOLD=sweep:0:{0} {1} & run=$!\n{2}kill -TERM $run\nrm {0}\nwait $run\n", held,
                  command, wait_until("[ -e " + held + " ]"))));
  EXPECT_EQ(stopped.exit_code, exit_code::resumable) << stopped.output;
  EXPECT_EQ(std::ranges::count(lines_of(stopped.output), command), 1) << stopped.output;
}

TEST(Output, EvaluationHasABarOnATerminal) {
  const Workplace workplace("bars");
  const std::string command =
      lockstep("train " + workplace.path("config.toml").string() + " --set train.epochs=1");
  const ProgramResult watched = run_on_terminal(command), piped = run_shell(command);
  // 103 test images are 13 batches. The bar has their number, their rate and the time that is left.
  expect_output(watched, R"(\[[#.]+\]  \d+/13  [^\n]*/s  \d+:\d\d)");
  EXPECT_FALSE(std::regex_search(piped.output, std::regex(R"( \d+/13 )"))) << piped.output;
  EXPECT_FALSE(says(piped, "[#")) << piped.output;
}

// command_line_test.cpp checks the help of each command.
TEST(Output, EveryCommandFitsATerminal) {
  const Workplace workplace("commands");
  const std::string config = workplace.path("config.toml").string() + " --set model.name=resnet20";
  for (const std::string& command : {std::string("info"), "plan " + config + " --set train.recompute=true",
                                     "profile " + config + " --steps 1 --rows 0"}) {
    const ProgramResult result = run_on_terminal(lockstep(command));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_LE(longest_line(result.output), 80u) << result.output;
  }
  const ProgramResult ranks = run_on_terminal(on_ranks(2, lockstep("profile " + config + " --steps 1")));
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
  EXPECT_LE(longest_line(ranks.output), 80u) << ranks.output;
}

// layer_table_test.cpp checks the table of `lockstep profile`.
TEST(Output, WideOutputIsNeitherShortenedNorWrapped) {
  const Workplace workplace("room");
  const std::string plan =
      lockstep("plan " + workplace.path("config.toml").string() + " --set model.name=resnet20");
  for (const ProgramResult& result : {run_shell(plan), run_on_terminal("stty columns 200; " + plan)}) {
    expect_output(result, R"(\n  statistics +[0-9.]+ MiB  [^\n]+\n  \S)");
    EXPECT_GT(longest_line(result.output), 80u) << result.output;
  }
}

TEST(Output, LogLinesAreWrappedOnATerminalOnly) {
  const Workplace workplace("log_lines");
  const std::string plan =
      lockstep("plan " + workplace.path("config.toml").string() +
               " --set train.threads=" + std::to_string(std::thread::hardware_concurrency() + 1));
  const ProgramResult piped = run_shell(plan), shown = run_on_terminal(plan);
  const std::regex broken(R"(warning \[rank 0\] [^\n]*\n    \S)");
  EXPECT_EQ(output_lines_with(piped, {"warning [rank 0] ", "train.threads"}), 1) << piped.output;
  EXPECT_FALSE(std::regex_search(piped.output, broken)) << piped.output;
  EXPECT_GT(longest_line(piped.output), 80u);
  EXPECT_TRUE(std::regex_search(shown.output, broken)) << shown.output;
  EXPECT_LE(longest_line(shown.output), 80u) << shown.output;
}

TEST(Steps, ScheduleHeaderAndProgressUseTheSameCount) {
  const Workplace workplace("steps");
  const auto run = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(),
                    {"train.epochs=3", "schedule.name=cosine", "optimizer.learning_rate=0.01"});
    const ProgramResult result = run_shell(workplace.train(settings));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result;
  };
  const auto expect_rate = [&](double steps) {  // of the last step
    const double progress = (steps - 1) / steps;
    EXPECT_NEAR(last_metrics(workplace).value("learning_rate", 0.0),
                0.005 * (1 + std::cos(std::numbers::pi * progress)), 1e-12);
  };
  // A line of the output has these parts of the header.
  const auto expect_run = [&](const ProgramResult& result, int epochs, int steps, int global_batch,
                              const std::vector<std::string>& header) {
    EXPECT_EQ(output_lines_with(result, header), 1) << result.output;
    EXPECT_EQ(last_metrics(workplace).value("epoch", 0), epochs);
    EXPECT_EQ(last_metrics(workplace).value("steps", 0), steps);
    const Json facts = run_record(workplace.path("run"));
    EXPECT_EQ(facts.value("global_batch", 0), global_batch);
  };
  const ProgramResult cut = run({"train.steps=70"});  // an epoch has 64
  expect_run(cut, 2, 70, 8, {"70 steps", "2 epochs"});
  expect_output(cut, R"(\nepoch 2/2  6/6  [^\n]*\b0:00\b[^\n]*\nepoch 2/2 )");
  expect_rate(70);

  const ProgramResult whole = run({"train.steps=1000", "schedule.milestones=[1]"});
  EXPECT_EQ(output_lines_with(whole, {"schedule.milestones has no effect"}), 1) << whole.output;
  expect_run(whole, 3, 3 * 64, 8, {"3 epochs", "64 steps"});
  expect_rate(3 * 64);

  const ProgramResult dropped = run({"train.batch=48"});
  expect_run(dropped, 3, 30, 48, {"3 epochs", "10 steps", "32 samples", "data.tail"});
  expect_rate(30);
  const ProgramResult repeated = run({"train.batch=48", "data.tail=repeat"});
  expect_run(repeated, 3, 33, 48, {"3 epochs", "11 steps", "16 samples", "data.tail"});
  EXPECT_TRUE(says(repeated, "\nepoch 3/3  11/11  ")) << repeated.output;
  expect_rate(33);

  const ProgramResult exact = run({"train.batch=48", "data.tail=exact"});
  expect_run(exact, 3, 33, 48, {"3 epochs", "11 steps", "32 samples", "data.tail"});

  // 512 samples are 10 batches of 48, and 32 samples for the next epoch.
  const ProgramResult carried = run({"train.batch=48", "data.tail=carry"});
  expect_run(carried, 3, 32, 48, {"32 steps", "3 epochs"});
  expect_output(carried, R"(\nepoch 3/3  11/11  [^\n]*\b0:00\b[^\n]*\nepoch 3/3 )");
  expect_rate(32);
  const auto warm_up = [](const ProgramResult& result, const std::vector<std::string>& numbers) {
    std::vector<std::string> parts = {"warning [rank 0]", "warm-up"};
    parts.insert(parts.end(), numbers.begin(), numbers.end());
    return output_lines_with(result, parts);
  };
  EXPECT_EQ(warm_up(carried, {}), 0) << carried.output;
  // The warm-up has 27 of the 32 steps of all epochs.
  const ProgramResult short_of_it =
      run({"train.batch=48", "data.tail=carry", "train.steps=22", "schedule.warmup_epochs=2.5"});
  expect_run(short_of_it, 3, 22, 48, {"22 steps", "3 epochs"});
  EXPECT_TRUE(says(short_of_it, "\nepoch 3/3  1/1  ")) << short_of_it.output;
  EXPECT_EQ(warm_up(short_of_it, {" 27 ", " 22", " 0.00815 ", " 0.01;"}), 1) << short_of_it.output;
  EXPECT_NEAR(last_metrics(workplace).value("learning_rate", 0.0), 0.01 * 22 / 27, 1e-12);
  // The first epoch has 10 of the 32 steps.
  const ProgramResult shorter =
      run({"train.batch=48", "data.tail=carry", "train.steps=9", "schedule.warmup_epochs=1"});
  EXPECT_EQ(warm_up(shorter, {" 10 ", " 9", " 0.009 "}), 1) << shorter.output;
  EXPECT_NEAR(last_metrics(workplace).value("learning_rate", 0.0), 0.01 * 9 / 10, 1e-12);
}

}  // namespace
}  // namespace lockstep
