// SPDX-License-Identifier: Apache-2.0
#include "core/system/printable.h"

#include <gtest/gtest.h>

#include "core/log.h"

namespace lockstep {
namespace {

TEST(Printable, TerminalEscapeSequencesAreShownAsText) {
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\x07"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(printable("over\rwritten\x7f\b"), "over\\x0dwritten\\x7f\\x08");
  EXPECT_EQ(printable(std::string("nothing\0behind", 14)), "nothing\\x00behind");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J")
      << "the same escape sequence with a C1 control character";
}

TEST(Printable, LineHasNoLineBreaksAndTabs) {
  EXPECT_EQ(printable_line("two\n\tlines \x1b[2J"), "two\\x0a\\x09lines \\x1b[2J");
  EXPECT_EQ(printable_line("\xe2\x82\xac 1"), "\xe2\x82\xac 1");
}

TEST(Printable, PrintableUtf8IsUnchanged) {
  for (const char* text : {"", "two\n\tlines",
                           "Gr\xc3\xb6\xc3\x9f"
                           "e \xe2\x82\xac \xf0\x9f\x90\xb1",
                           "\xc2\xa0"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, InvalidUtf8IsShownByteByByte) {
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");
  EXPECT_EQ(printable("a\xff"
                      "b"),
            "a\\xffb");
  EXPECT_EQ(printable("cut \xe2\x82"), "cut \\xe2\\x82");
  EXPECT_EQ(printable("\xc0\x9b \xe0\x82\x9b"), "\\xc0\\x9b \\xe0\\x82\\x9b") << "overlong encodings";
  EXPECT_EQ(printable("\xed\xa0\x80 \xf5\x80\x80\x80"), "\\xed\\xa0\\x80 \\xf5\\x80\\x80\\x80");
}

TEST(Printable, ValidUtf8KeepsControlCharacters) {
  EXPECT_EQ(valid_utf8("Gr\xc3\xb6\x1b\n\xc2\x9b\\"), "Gr\xc3\xb6\x1b\n\xc2\x9b\\");
  EXPECT_EQ(valid_utf8("p\xe9\n"), "p\\xe9\n");
}

TEST(Printable, ControlCharactersAreFound) {
  EXPECT_TRUE(has_control_characters("a\x1b"));
  EXPECT_TRUE(has_control_characters("two\nlines"));
  EXPECT_TRUE(has_control_characters("\xc2\x85"));
  EXPECT_FALSE(
      has_control_characters("Gr\xc3\xb6\xc3\x9f"
                             "e"));
  EXPECT_FALSE(has_control_characters("\xff"));
}

TEST(Printable, TheLogWritesPrintableText) {
  testing::internal::CaptureStderr();
  log::warning("\"{}\" is damaged", "\x1b[2Jweight");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning [rank 0] \"\\x1b[2Jweight\" is damaged\n");
}

}  // namespace
}  // namespace lockstep
