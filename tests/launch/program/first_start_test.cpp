// SPDX-License-Identifier: Apache-2.0
//
// The messages about timed kernels, which appear only at the first start.
#include <gtest/gtest.h>

#include "tests/launch/program/program.h"

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

}  // namespace
}  // namespace lockstep
