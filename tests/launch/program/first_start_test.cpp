// SPDX-License-Identifier: Apache-2.0
//
// The messages about timed kernels, which appear only at the first start.
#include <regex>

#include <gtest/gtest.h>

#include "tests/launch/program/program.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// A second start times nothing, unless the machine was busy at the first: then up to four more starts time
// the kernels again.
TEST(FirstStart, OnlyTheFirstStartReportsKernelTiming) {
  const Workplace workplace("first_start");
  // 16-bit types have several candidates on every processor.
  const std::string cache = workplace.path("cache").string();  // named only where kernels are timed
  const std::string command =
      program("lockstep") + " plan " + workplace.path("config.toml").string() +
      " --set train.precision=bf16 --set kernels.choose=time --set kernels.cache=" + cache;
  const ProgramResult first = run_shell(command);
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_GE(count(first.output, cache), 1) << first.output;
  ProgramResult later = run_shell(command);
  for (int start = 3; start <= 6 && count(later.output, cache) > 0; ++start) later = run_shell(command);
  ASSERT_EQ(later.exit_code, 0) << later.output;
  EXPECT_EQ(count(later.output, cache), 0) << later.output;
}

TEST(FirstStart, InfoListsTheKernelsThatATrainingChose) {
  const Workplace workplace("info_kernels");
  const std::string cache = workplace.path("cache").string();
  const std::string user = "XDG_CACHE_HOME=" + cache + " ";
  const std::string list = user + program("lockstep") + " info --kernels";
  const ProgramResult before = run_shell(list);
  EXPECT_EQ(before.exit_code, 0) << before.output;
  expect_parts(before.output, {cache, "lockstep train"});
  const ProgramResult training =
      run_shell(user + workplace.train({"model.name=cnn", "train.steps=1", "train.precision=bf16",
                                        "kernels.choose=time"}));
  ASSERT_EQ(training.exit_code, 0) << training.output;
  const ProgramResult after = run_shell(list);
  EXPECT_EQ(after.exit_code, 0) << after.output;
  expect_parts(after.output, {cache, "convolution, 8x"});
  const std::regex row(R"(\n  forward +\S[^\n]* us +(first|\d+\.\d\dx)  \d{4}-\d\d-\d\d \d\d:\d\d +\w+\n)");
  EXPECT_TRUE(std::regex_search(after.output, row)) << after.output;
}

}  // namespace
}  // namespace lockstep
