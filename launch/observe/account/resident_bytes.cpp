// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/resident_bytes.h"

#include <fstream>

#include <unistd.h>

namespace lockstep {

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident_pages = 0;
  if (!(file >> pages >> resident_pages)) return 0;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace lockstep
