// SPDX-License-Identifier: Apache-2.0
//
// The views of several nodes, from the files that their trainings write for Prometheus (MetricsOutput).
#pragma once

#include <filesystem>
#include <vector>

#include "launch/observe/jobs/node_view.h"

namespace lockstep {

// A view for each file of the folder that Lockstep wrote, sorted by name: of a job on a node. run_dir:
// restricts the views to the job of this folder; empty: all jobs. Files that are damaged, of another form or
// not regular are skipped. Throws IoError if the folder cannot be read.
std::vector<NodeView> view_files(const std::filesystem::path& folder,
                                 const std::filesystem::path& run_dir = {});

}  // namespace lockstep
