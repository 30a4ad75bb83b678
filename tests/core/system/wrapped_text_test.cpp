// SPDX-License-Identifier: Apache-2.0
#include "core/system/wrapped_text.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(WrappedText, BreaksAtBlanksAndKeepsLinesAndTheirIndents) {
  EXPECT_EQ(wrapped("one two three", {.columns = 7}), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", {.indent = 2, .columns = 9}), "  one two\n  three");
  EXPECT_EQ(wrapped("a\n  b c", {.columns = 4}), "a\n  b\n  c");
  EXPECT_EQ(wrapped("a verylongword b", {.columns = 4}), "a\nverylongword\nb");
  EXPECT_EQ(wrapped("a\n\nb", {}), "a\n\nb");
  EXPECT_EQ(wrapped("", {}), "");
}

TEST(WrappedText, LinesThatFitAreKeptAndContinuationLinesCanBeIndented) {
  EXPECT_EQ(wrapped("a  table's   line\nx", {.columns = 17}), "a  table's   line\nx");
  EXPECT_EQ(wrapped("a  table's   line\nx", {.columns = 16}), "a  table's\nline\nx");
  EXPECT_EQ(wrapped("one two  three\nx y", {.indent = 1, .hanging = 2, .columns = 8}),
            " one two\n   three\n x y");
  EXPECT_EQ(wrapped("  one two", {.hanging = 1, .columns = 6}), "  one\n   two");
  EXPECT_EQ(wrapped("verylongword", {.hanging = 2, .columns = 4}), "verylongword");
  EXPECT_EQ(wrapped("blanks  \n  \nend", {}), "blanks\n\nend");
}

}  // namespace
}  // namespace lockstep
