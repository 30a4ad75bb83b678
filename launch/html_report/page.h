// SPDX-License-Identifier: Apache-2.0
//
// The page of `lockstep report`: one HTML file with all that it needs, and no script. It leads with why the
// device was idle; of several runs, with what differs between them.
#pragma once

#include <span>
#include <string>

#include "launch/html_report/run_files.h"

namespace lockstep {

// Of one run or more. The same runs give the same page.
std::string report_page(std::span<const RunFolder> runs);

}  // namespace lockstep
