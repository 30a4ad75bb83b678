// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/charts/markup.h"

#include <algorithm>

#include <fmt/format.h>

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

std::string svg_element(double width, double height, std::string_view attributes, std::string_view content) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\"{2}>\n{3}</svg>\n",
      width, height, attributes, content);
}

void add_point(std::string& path, double x, double y) {
  path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
}

}  // namespace lockstep
