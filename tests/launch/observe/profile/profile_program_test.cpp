// SPDX-License-Identifier: Apache-2.0
//
// The program with profile.*: the files, their steps, and that training does not change.
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"

namespace lockstep {
namespace {

using ProfileSettingsText = std::vector<std::string>;
using StepNames = std::set<std::string>;

// The steps in the profiles by cycle and rank.
std::vector<std::map<int, StepNames>> profiled_steps(const std::filesystem::path& folder) {
  std::map<std::string, std::map<int, StepNames>> by_time;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const nlohmann::json trace = nlohmann::json::parse(text_of(entry.path()));
    const int rank = trace.at("distributedInfo").at("rank");
    EXPECT_NE(name.find(fmt::format("_{}.", rank)), std::string::npos) << name;
    const std::size_t end = name.rfind(".pt.trace.json");
    const std::string time = name.substr(name.rfind('.', end - 1), end);
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      const std::string what = event.at("name");
      if (what.starts_with("ProfilerStep#")) by_time[time][rank].insert(what.substr(what.find('#') + 1));
    }
  }
  std::vector<std::map<int, StepNames>> cycles;
  for (const auto& [time, ranks] : by_time) cycles.push_back(ranks);
  return cycles;
}

std::string trained_by_two(const Workplace& workplace, ProfileSettingsText settings,
                           const std::string& flags = "") {
  settings.insert(settings.end(), {"model.name=cnn", "train.threads=1"});
  const ProgramResult result = run_ranks(2, workplace.train(settings, flags));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return result.output;
}

const ProfileSettingsText kCycles = {"profile.wait=2", "profile.warmup=1", "profile.active=2"};

ProfileSettingsText with(ProfileSettingsText settings, const ProfileSettingsText& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

TEST(ProfileProgram, EveryRankWritesEachCycleAndTrainingIsUnchanged) {
  const Workplace workplace("profile");
  const std::string plain = digest_of(workplace, 2, {"model.name=cnn", "train.threads=1", "train.steps=14"});
  const std::string output =
      trained_by_two(workplace, with(kCycles, {"train.steps=14", "train.accumulation=1"}),
                     "--digest " + workplace.path("digest").string());
  EXPECT_EQ(text_of(workplace.path("digest")), plain);
  const StepNames first = {"4", "5"}, second = {"9", "10"}, cut_short = {"14"};
  using Cycle = std::map<int, StepNames>;
  EXPECT_EQ(profiled_steps(workplace.path("run/profile")),
            (std::vector<Cycle>{
                {{0, first}, {1, first}}, {{0, second}, {1, second}}, {{0, cut_short}, {1, cut_short}}}));
  for (const char* steps : {"steps 4", "steps 9", "step 14"}) EXPECT_GE(count(output, steps), 1) << output;
  EXPECT_EQ(count(output, workplace.path("run/profile").string()), 3) << output;
}

TEST(ProfileProgram, ResumedRunCountsStepsOfTheWholeTraining) {
  const Workplace workplace("profile_resumed");
  trained_by_two(workplace, with(kCycles, {"train.steps=4", "run.checkpoint_every=4", "profile.repeat=1"}));
  trained_by_two(workplace, with(kCycles, {"train.steps=9", "run.checkpoint_every=4", "profile.repeat=2"}),
                 "--resume auto --resume-with train.steps");
  using Cycle = std::map<int, StepNames>;
  EXPECT_EQ(
      profiled_steps(workplace.path("run/profile")),
      (std::vector<Cycle>{{{0, {"4"}}, {1, {"4"}}}, {{0, {"5"}}, {1, {"5"}}}, {{0, {"9"}}, {1, {"9"}}}}));
  trained_by_two(workplace, with(kCycles, {"train.steps=5"}));
  EXPECT_EQ(profiled_steps(workplace.path("run/profile")).size(), 1u);  // only the new run's
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/profile.1")));
}

TEST(ProfileProgram, UnwritableFolderDoesNotEndTraining) {
  const Workplace workplace("profile_lost");
  std::ofstream(workplace.path("file")) << "no folder";
  const ProgramResult result = run_ranks(
      2, workplace.train(with(kCycles, {"train.steps=6", fmt::format("profile.dir=\"{}\"",
                                                                     workplace.path("file/in").string())}),
                         "--digest " + workplace.path("digest").string()));
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
  for (const int rank : {0, 1})
    EXPECT_TRUE(std::regex_search(result.output,
                                  std::regex(fmt::format("warning \\[rank {}\\][^\\n]*/file/in", rank))))
        << result.output;
  EXPECT_TRUE(std::filesystem::exists(workplace.path("digest")));
}

TEST(ProfileProgram, RefusesARingAndASecondTrace) {
  const Workplace workplace("profile_refused");
  expect_failure(run_ranks(2, workplace.train(with(kCycles, {"comm.topology=ring"}))), exit_code::config,
                 {"comm.topology", "profile.active"});
  expect_failure(run_ranks(2, workplace.train(kCycles, "--trace " + workplace.path("trace").string())),
                 exit_code::usage, {"--trace", "profile.active"});
}

}  // namespace
}  // namespace lockstep
