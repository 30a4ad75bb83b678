// SPDX-License-Identifier: Apache-2.0
//
// The page of `lockstep report`: one self-contained HTML file without scripts. It starts with the causes of
// idle time; for several runs, with their differences.
#pragma once

#include <span>
#include <string>

#include "launch/program/html_report/files/run_files.h"

namespace lockstep {

// runs: at least one. Equal runs give equal pages.
std::string report_page(std::span<const RunFolder> runs);

}  // namespace lockstep
