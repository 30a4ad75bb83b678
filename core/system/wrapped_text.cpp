// SPDX-License-Identifier: Apache-2.0
#include "core/system/wrapped_text.h"

#include <algorithm>
#include <sstream>

namespace lockstep {
namespace {

std::string wrapped_line(const std::string& line, const Wrapping& wrapping) {
  const std::size_t first = line.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  const std::string margin(wrapping.indent + first, ' ');
  std::string text = margin;
  std::size_t used = 0;  // columns used in this line
  for (std::size_t begin = first, end = first; begin != std::string::npos;) {
    const std::string gap(begin - end, ' ');
    end = std::min(line.find(' ', begin), line.size());
    const std::string word = line.substr(begin, end - begin);
    if (used > 0 && used + gap.size() + word.size() > wrapping.columns) {
      const std::string indent = margin + std::string(wrapping.hanging, ' ');
      text += '\n' + indent + word;
      used = indent.size() + word.size();
    } else {
      text += gap + word;
      used += (used == 0 ? margin.size() : gap.size()) + word.size();
    }
    begin = line.find_first_not_of(' ', end);
  }
  return text;
}

}  // namespace

std::string wrapped(const std::string& text, const Wrapping& wrapping) {
  std::istringstream lines(text);
  std::string result;
  bool first = true;
  for (std::string line; std::getline(lines, line); first = false) {
    if (!first) result += '\n';
    result += wrapped_line(line, wrapping);
  }
  return result;
}

}  // namespace lockstep
