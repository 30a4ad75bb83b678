// SPDX-License-Identifier: Apache-2.0
//
// Text that may come from anywhere, for people: names in files, and messages that quote them, end up on
// terminals, which take some characters for orders.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Control characters but line breaks and tabs, and bytes that are not UTF-8, become what C would write for
// them: "\x1b[2J". Everything else stays as it is.
std::string printable(std::string_view text);

// Whether there is any control character at all, line breaks and tabs among them.
bool has_control_characters(std::string_view text);

}  // namespace lockstep
