// SPDX-License-Identifier: Apache-2.0
//
// Text that may come from anywhere, within HTML, SVG and XML.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// As the text of an element, or of an attribute in double quotes. Control characters, for which XML has no
// place, become blanks; bytes that are not UTF-8 are written out.
std::string in_markup(std::string_view text);

}  // namespace lockstep
