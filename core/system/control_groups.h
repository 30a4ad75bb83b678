// SPDX-License-Identifier: Apache-2.0
//
// The control groups of this process, versions 1 and 2. Batch jobs, systemd units and containers limit
// processor time and memory with them; a limit of an enclosing group applies to all groups inside it.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace lockstep {

// The folders of this process's group and of each group that encloses it, the innermost first, in each
// mounted hierarchy that can limit this resource. A hierarchy that is mounted at several places is listed for
// each. Empty if the system does not report groups, or mounts no hierarchy that can limit this resource.
// Files of limits may be missing in a folder. controller: its name in version 1, "cpu" or "memory". root: of
// the file system, for tests.
std::vector<std::filesystem::path> control_groups(std::string_view controller,
                                                  const std::filesystem::path& root = "/");

}  // namespace lockstep
