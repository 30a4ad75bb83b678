// SPDX-License-Identifier: Apache-2.0
//
// Untrusted text inside HTML, SVG and XML.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Escapes the text of an element, or of an attribute in double quotes. Control characters, which XML does not
// allow, become blanks; bytes that are not UTF-8 are written as escapes.
std::string in_markup(std::string_view text);

}  // namespace lockstep
