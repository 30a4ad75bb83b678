// SPDX-License-Identifier: Apache-2.0
#include <regex>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/launch/program/program.h"

namespace lockstep {
namespace {

// The spin count that OpenMP reports after the program was loaded for the last time.
std::string spin_count(const std::string& environment) {
  const Workplace workplace("waiting");
  const ProgramResult result =
      run_shell(fmt::format("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose {} {}",
                            environment, workplace.train({"train.steps=1"})));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::string last;
  const std::regex line("GOMP_SPINCOUNT = '(\\d+)'");
  for (std::sregex_iterator at(result.output.begin(), result.output.end(), line), end; at != end; ++at)
    last = (*at)[1];
  return last;
}

TEST(Waiting, SpinCountIsBounded) {
  const std::string spins = spin_count("");
  ASSERT_FALSE(spins.empty());
  EXPECT_GT(std::stol(spins), 0);
  EXPECT_LT(std::stol(spins), 50000);  // OpenMP's default is 300000
}

TEST(Waiting, UserSettingIsKept) {
  EXPECT_EQ(spin_count("GOMP_SPINCOUNT=777"), "777");
  EXPECT_EQ(spin_count("OMP_WAIT_POLICY=passive"), "0");
}

}  // namespace
}  // namespace lockstep
