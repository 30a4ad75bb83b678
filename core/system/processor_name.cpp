// SPDX-License-Identifier: Apache-2.0
#include "core/system/processor_name.h"

#include <algorithm>
#include <fstream>

namespace lockstep {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "an unnamed processor";
}

}  // namespace lockstep
