// SPDX-License-Identifier: Apache-2.0
#include "launch/wrapped_text.h"

#include <sstream>

namespace lockstep {
namespace {

std::string wrapped_line(const std::string& line, const Wrapping& wrapping) {
  const std::size_t first = line.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  const std::string margin(wrapping.indent + first, ' ');
  std::istringstream words(line);
  std::string text, word;
  std::size_t used = 0;  // of this line
  while (words >> word) {
    if (used > 0 && used + 1 + word.size() > wrapping.columns) {
      text += '\n';
      used = 0;
    }
    const std::string before = used == 0 ? margin : " ";
    text += before + word;
    used += before.size() + word.size();
  }
  return text;
}

}  // namespace

std::string wrapped(const std::string& text, const Wrapping& wrapping) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    if (!result.empty()) result += '\n';
    result += wrapped_line(line, wrapping);
  }
  return result;
}

}  // namespace lockstep
