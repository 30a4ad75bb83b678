// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/measure.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

TEST(Measure, TheMedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({7}), 7);
  EXPECT_DOUBLE_EQ(median({9, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({9, 1, 4, 2}), 3);
}

TEST(Measure, ASpreadHasTheMedianAndBothEnds) {
  const Spread spread = spread_of({9, 1, 4, 2});
  EXPECT_DOUBLE_EQ(spread.typical, 3);
  EXPECT_DOUBLE_EQ(spread.least, 1);
  EXPECT_DOUBLE_EQ(spread.most, 9);
}

TEST(Measure, ToleranceFollowsTheLargestExpectedValue) {
  EXPECT_EQ(first_wrong(std::vector{1.0f, 100.0f}, std::vector{1.009f, 100.9f}), std::nullopt);
  EXPECT_EQ(first_wrong(std::vector{0.0f, 100.0f}, std::vector{0.02f, 100.0f}), 0u);
  EXPECT_EQ(first_wrong(std::vector{0.001f, 0.001f}, std::vector{0.001f, 0.002f}), 1u) << "a softmax";
  EXPECT_EQ(first_wrong(std::vector{0.00001f, 0.002f}, std::vector{0.00002f, 0.002f}), std::nullopt);
  EXPECT_EQ(first_wrong(std::vector{0.0f}, std::vector{0.0f}), std::nullopt);
  EXPECT_EQ(first_wrong(std::vector{std::nanf("")}, std::vector{1.0f}), 0u);
}

// A program with an option of each kind. Its work must not begin.
struct LimitedProgram {
  LimitedProgram() {
    program.positive("--steps", steps, "timed steps");
    program.positive("--seconds", seconds, "length of a turn");
    program.not_negative("--warmup", warmup, "untimed steps");
    program.within("--threads", threads, 1, 64, "threads");
    program.one_of("--device", device, {"cpu", "cuda"}, "cpu or cuda");
    program.json(json);
  }
  int exit_code_of(std::vector<std::string> words) {
    words.insert(words.begin(), "bench");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    return program.run(static_cast<int>(arguments.size()), arguments.data(), [] {
      ADD_FAILURE() << "the work begins";
      return exit_code::done;
    });
  }

  BenchProgram program{"bench", "Measures."};
  int steps = 1;
  double seconds = 1;
  int warmup = 1;
  std::vector<int> threads;
  std::string device;
  std::string json;
};

TEST(BenchProgram, HelpShowsTypesAndLimits) {
  LimitedProgram limited;
  testing::internal::CaptureStdout();
  EXPECT_EQ(limited.exit_code_of({"--help"}), exit_code::done);
  const std::string help = testing::internal::GetCapturedStdout();
  for (const char* part : {"Measures.", "--steps INT:POSITIVE", "--warmup INT:NONNEGATIVE",
                           "--threads INT:INT in [1 - 64]", "--device TEXT:{cpu,cuda}", "--json TEXT"})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
}

TEST(BenchProgram, RefusesValuesOutsideTheLimits) {
  EXPECT_EQ(LimitedProgram().exit_code_of({"--steps", "0"}), exit_code::usage);
  EXPECT_EQ(LimitedProgram().exit_code_of({"--seconds", "nan"}), exit_code::usage);
  EXPECT_EQ(LimitedProgram().exit_code_of({"--warmup", "-1"}), exit_code::usage);
  EXPECT_EQ(LimitedProgram().exit_code_of({"--threads", "1", "65"}), exit_code::usage);
  EXPECT_EQ(LimitedProgram().exit_code_of({"--device", "tpu"}), exit_code::usage);
  EXPECT_EQ(LimitedProgram().exit_code_of({"CONFIG"}), exit_code::usage);
}

}  // namespace
}  // namespace lockstep
