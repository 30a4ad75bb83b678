// SPDX-License-Identifier: Apache-2.0
//
// A NodeView for programs, as one line of JSON.
#pragma once

#include <string>

#include "launch/observe/jobs/node_view.h"

namespace lockstep {

// {time, host, jobs: [{job, run_dir, model, .., here: [{rank, state, step, busy, account, idle, ..}]}],
// devices: [{uuid, utilization, ..}]}. Unknown and outdated values are null.
std::string to_json(const NodeView& view, double idle_seconds);

}  // namespace lockstep
