// SPDX-License-Identifier: Apache-2.0
//
// Makes untrusted text safe to print: names in files, and messages that quote them, reach terminals, which
// interpret control characters as commands.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Replaces control characters, except line breaks and tabs, and bytes that are not UTF-8 by C escapes:
// "\x1b[2J". All other text is unchanged.
std::string printable(std::string_view text);
// Likewise, line breaks and tabs included.
std::string printable_line(std::string_view text);
// Replaces only bytes that are not UTF-8 by C escapes, for formats that must be UTF-8. Texts that differ in
// such a byte stay different.
std::string valid_utf8(std::string_view text);

// True if the text has any control character, line breaks and tabs included.
bool has_control_characters(std::string_view text);

}  // namespace lockstep
