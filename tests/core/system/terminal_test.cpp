// SPDX-License-Identifier: Apache-2.0
#include "core/system/terminal.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Terminal, TextIsWrappedBesideItsStart) {
  const Terminal terminal{.present = true, .columns = 12};
  EXPECT_EQ(beside("start  ", "one two", terminal), "start  one\n       two");
  EXPECT_EQ(beside("start  ", "one two", Terminal{}), "start  one two");
  for (const char* empty : {"", " "}) EXPECT_EQ(beside("start  ", empty, terminal), "start  ");
}

}  // namespace
}  // namespace lockstep
