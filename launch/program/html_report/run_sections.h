// SPDX-License-Identifier: Apache-2.0
//
// Sections of the page, as markup, for one run or for several side by side.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launch/program/html_report/files/run_files.h"

namespace lockstep {

// Runs and their display names.
struct NamedRuns {
  std::span<const RunFolder> runs;
  std::vector<std::string> names;
};

// Why the device was idle, and what to change.
std::string verdict_section(const RunFolder& run);
// Communication by bucket and rank; a sentence if there is no data.
std::string communication_section(const RunFolder& run);
// Charts with a curve for each run.
std::string speed_charts(const NamedRuns& named);
std::string learning_charts(const NamedRuns& named);
// Confusions and scores of classes; empty if no evaluation recorded them.
std::string class_section(const RunFolder& run);
// Planned memory by part, and measured memory; empty without data.
std::string memory_section(const RunFolder& run);
// The share of exposed communication over steps, as a figure.
std::string exposed_figure(const RunFolder& run);
std::string monitor_section(const RunFolder& run);
std::string events_section(const RunFolder& run);
// Keys of the configuration and facts of the machine: all, or only those that differ.
std::string facts_section(const NamedRuns& named, bool only_differences);
// A line for each missing file.
std::string absent_section(const RunFolder& run);

}  // namespace lockstep
