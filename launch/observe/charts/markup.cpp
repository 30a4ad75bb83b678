// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/charts/markup.h"

#include <algorithm>

#include "core/system/printable.h"

namespace lockstep {

std::string in_markup(std::string_view text) {
  std::string plain(text);
  std::ranges::replace_if(
      plain, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  std::string result;
  for (const char c : printable(plain)) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

}  // namespace lockstep
