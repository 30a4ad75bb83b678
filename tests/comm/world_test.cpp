// SPDX-License-Identifier: Apache-2.0
#include "comm/world.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

class LaunchedRank : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) unsetenv(name);
  }
  void TearDown() override { SetUp(); }
};

TEST_F(LaunchedRank, IsZeroWithoutALauncher) { EXPECT_EQ(launched_rank(), 0); }

TEST_F(LaunchedRank, ReadsTheVariablesOfTheLauncher) {
  setenv("SLURM_PROCID", "7", 1);
  EXPECT_EQ(launched_rank(), 7);
  setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  EXPECT_EQ(launched_rank(), 3);
}

TEST_F(LaunchedRank, IgnoresInvalidRanks) {
  for (const char* text : {"", "x", "3x", "-1"}) {
    setenv("PMIX_RANK", text, 1);
    EXPECT_EQ(launched_rank(), 0) << text;
  }
}

}  // namespace
}  // namespace lockstep
