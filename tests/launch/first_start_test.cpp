// SPDX-License-Identifier: Apache-2.0
//
// What a user sees of kernels that are timed, and that it is seen once.
#include <gtest/gtest.h>

#include "tests/launch/program.h"

namespace lockstep {
namespace {

TEST(FirstStart, SaysThatItTimesKernelsAndASecondDoesNot) {
  const Workplace workplace("first_start");
  // Halves have several candidates on every processor.
  const std::string command = program("lockstep") + " plan " + workplace.path("config.toml").string() +
                              " --set train.precision=bf16 --set kernels.choose=time --set kernels.cache=" +
                              workplace.path("cache").string();
  const ProgramResult first = run_shell(command);
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_NE(first.output.find("timing "), std::string::npos) << first.output;
  EXPECT_NE(first.output.find(workplace.path("cache").string()), std::string::npos)
      << "where choices are kept is not said: " << first.output;
  const ProgramResult second = run_shell(command);
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_EQ(second.output.find("timing "), std::string::npos) << second.output;
}

}  // namespace
}  // namespace lockstep
