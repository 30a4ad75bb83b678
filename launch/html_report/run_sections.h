// SPDX-License-Identifier: Apache-2.0
//
// Sections of the page, as markup: each of one run, or of several side by side.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launch/html_report/run_files.h"

namespace lockstep {

// Runs, and what they are called.
struct NamedRuns {
  std::span<const RunFolder> runs;
  std::vector<std::string> names;
};

// Why the device was idle, and what to change.
std::string verdict_section(const RunFolder& run);
// Buckets and ranks; a sentence where there is nothing to tell.
std::string communication_section(const RunFolder& run);
// Of one run, or a line for each of several.
std::string speed_charts(const NamedRuns& named);
std::string learning_charts(const NamedRuns& named);
// Which classes were taken for which; nothing where no evaluation counted that.
std::string class_section(const RunFolder& run);
// What was planned, part by part, and what ranks had; nothing where no file tells it.
std::string memory_section(const RunFolder& run);
// How much of the time communication took that nothing hid, over steps: a figure.
std::string exposed_figure(const RunFolder& run);
std::string monitor_section(const RunFolder& run);
std::string events_section(const RunFolder& run);
// Keys of configuration and facts of machine: those that differ, or all.
std::string facts_section(const NamedRuns& named, bool only_differences);
// A line for each file that is not there.
std::string absent_section(const RunFolder& run);

}  // namespace lockstep
