// SPDX-License-Identifier: Apache-2.0
//
// `lockstep tune` from the user's view: what it writes, how it resumes, what it refuses.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// comm.cross_barrier excludes comm.overlap = false, which is tried all the same.
TEST(Tune, LeavesOutSettingsThatExcludeEachOther) {
  const Workplace workplace("tune_conflict");
  const ProgramResult result =
      run_ranks(2, program("lockstep") + " tune " + workplace.path("config.toml").string() +
                       " --set comm.cross_barrier=true --steps 100");
  EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
  expect_parts(result.output, {"comm.overlap=false: cannot run", "comm.cross_barrier = true"});
}

// One rank with train.reproducible has no settings to try.
TEST(Tune, TimesTheConfigurationAlsoWithoutOtherSettings) {
  const Workplace workplace("tune_alone");
  const ProgramResult result =
      run_shell(program("lockstep") + " tune " + workplace.path("config.toml").string() +
                " --set train.reproducible=true --steps 20");
  ASSERT_EQ(result.exit_code, exit_code::done) << result.output;
  const auto evidence = nlohmann::json::parse(text_of(workplace.path("run") / "tuned.json"));
  EXPECT_TRUE(evidence["candidates"].empty());
  EXPECT_GT(evidence["default"]["step_ms"], 0);
}

TEST(Tune, MeasuresWritesAndResumes) {
  const Workplace workplace("tune", "lockstep", 4);
  const auto run = workplace.path("run");
  const std::string tune =
      program("lockstep") + " tune " + workplace.path("config.toml").string() +
      " --set model.name=resnet20 --set kernels.choose=direct --set comm.bucket_mib=[0.05,0.1,0.05]"
      " --steps 60";
  ProgramResult result = run_ranks(2, tune);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find('\r'), std::string::npos) << "a bar in piped output";
  expect_parts(result.output, {"samples/s", "comm.overlap=false", (run / "tuned.toml").string()});
  const auto evidence = nlohmann::json::parse(text_of(run / "tuned.json"));
  EXPECT_EQ(evidence["ranks"], 2);
  EXPECT_GT(evidence["default"]["step_ms"], 0);
  EXPECT_GE(evidence["candidates"].size(), 3u) << "bucket sizes, ends, overlap";
  for (const auto& candidate : evidence["candidates"]) {
    EXPECT_EQ(candidate["ratios"].size(), candidate["blocks"].size());
    for (const auto& block : candidate["blocks"]) {
      EXPECT_GT(block["step_ms"], 0);
      EXPECT_LE(block["exposed_ms"], block["step_ms"]);
    }
  }
  EXPECT_NE(text_of(run / "tuned.svg").find("<circle"), std::string::npos);

  // Stopped in the middle of its third measurement.
  const std::vector<std::string> all = lines_of(text_of(run / "tune.jsonl"));
  ASSERT_GE(all.size(), 4u);
  std::ofstream(run / "tune.jsonl") << all[0] << '\n'
                                    << all[1] << '\n'
                                    << all[2] << '\n'
                                    << all[3].substr(0, 20);
  result = run_ranks(2, tune);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_parts(result.output, {(run / "tune.jsonl").string()});
  const std::vector<std::string> resumed = lines_of(text_of(run / "tune.jsonl"));
  ASSERT_GT(resumed.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed[i], all[i]);
  EXPECT_EQ(nlohmann::json::parse(resumed[3])["settings"], nlohmann::json::parse(all[3])["settings"])
      << "the two measurements that are kept are not repeated";
  for (const std::string& line : resumed) EXPECT_TRUE(nlohmann::json::accept(line)) << line;

  const std::string tuned = (run / "tuned.toml").string();
  result = run_ranks(2, program("lockstep") + " train " + tuned + " --set train.steps=2");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::ofstream(tuned) << "# by hand\n";
  expect_failure(run_shell(tune + " --fresh"), exit_code::config, {tuned, "--out"});
  EXPECT_EQ(text_of(tuned), "# by hand\n");
}

}  // namespace
}  // namespace lockstep
