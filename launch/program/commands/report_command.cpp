// SPDX-License-Identifier: Apache-2.0
//
// lockstep report: one page of HTML about why the devices of a run were idle, or about several runs.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"
#include "launch/program/commands/commands.h"
#include "launch/program/html_report/page.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct ReportFlags {
  std::vector<std::string> runs;
  std::string out;
};

// True if the file starts as a report does.
bool is_page(const fs::path& file) {
  constexpr std::string_view kStart = "<!DOCTYPE html>";
  std::string start(kStart.size(), '\0');
  std::ifstream(file, std::ios::binary).read(start.data(), static_cast<std::streamsize>(start.size()));
  return start == kStart;
}

// A report must overwrite neither a file that it is made from nor another file in the run's folder, such as a
// network. It may replace an earlier report.
void refuse_file_of_run(const fs::path& out, const fs::path& folder) {
  std::error_code absent;
  const fs::path file = fs::canonical(out, absent), run = fs::canonical(folder, absent);
  const bool inside =
      !run.empty() && std::mismatch(run.begin(), run.end(), file.begin(), file.end()).first == run.end();
  if (is_file_of_run(out, folder) || (inside && fs::is_regular_file(file, absent) && !is_page(file)))
    throw UsageError(fmt::format("--out {} is a file of the run itself; name another file", out.string()));
}

int run_report(const Command& command) {
  if (launched_rank() != 0) return exit_code::done;
  const auto& flags = command.own<ReportFlags>();
  const fs::path out = flags.out.empty() ? fs::path(flags.runs.front()) / "report.html" : fs::path(flags.out);
  std::vector<RunFolder> runs;
  for (const std::string& folder : flags.runs) {
    if (!flags.out.empty()) refuse_file_of_run(out, folder);
    runs.push_back(read_run_folder(folder));
  }
  write_atomically(out, report_page(runs), flags.out.empty() ? Links::replace : Links::follow);
  print_fitted(printable(fmt::format("the report is in {}", out.string())));
  return exit_code::done;
}

void report_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<ReportFlags>();
  app.add_option("RUN", flags.runs, "Folder of a run (its run.dir); several runs are compared")->required();
  app.add_option("--out", flags.out, "File to write (default: report.html in the first run's folder)")
      ->type_name("FILE");
}

}  // namespace

extern const CommandEntry report_command = {
    .name = "report",
    .description = "Write an HTML page about a run, or compare several",
    .example = "lockstep report runs/latest\nlockstep report runs/a runs/b --out compared.html",
    .flags = report_flags,
    .alone = run_report};

}  // namespace lockstep
