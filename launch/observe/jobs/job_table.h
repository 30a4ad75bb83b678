// SPDX-License-Identifier: Apache-2.0
//
// A NodeView for people: for each job a line, a table with a row for each of its ranks here, lines for its
// GPUs, and remarks on ranks that hold idle devices or died.
#pragma once

#include <string>

#include "core/system/terminal.h"
#include "launch/observe/jobs/node_view.h"

namespace lockstep {

// Lines, each with a line end. Table rows fit on a terminal of 80 columns or more.
std::string table_of(const NodeView& view, double idle_seconds, const Terminal& terminal);

}  // namespace lockstep
