// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/line_file.h"

#include <cstring>

#include <fmt/format.h>

#include "core/log.h"
#include "core/text/text.h"
#include "launch/observe/run_files/run_folder.h"

namespace lockstep {

void LineFile::add(std::string_view line) {
  const int error = append_whole(path_, std::string(line) + '\n');
  if (error == 0) return;
  if (lost_++ == 0)
    log::warning("cannot write {}: {}; training continues without it", path_.string(), std::strerror(error));
  problem_ = fmt::format("{} lacks {}: {}", path_.string(), counted(lost_, "line"), std::strerror(error));
}

}  // namespace lockstep
