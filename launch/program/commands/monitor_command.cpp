// SPDX-License-Identifier: Apache-2.0
//
// lockstep monitor: shows the trainings of this machine from outside, or those of several machines from
// files.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/host_name.h"
#include "core/system/terminal.h"
#include "launch/observe/jobs/job_json.h"
#include "launch/observe/jobs/job_table.h"
#include "launch/observe/jobs/node_files.h"
#include "launch/observe/jobs/node_view.h"
#include "launch/program/commands/commands.h"
#include "launch/train/checkpoint/stop_signals.h"

namespace lockstep {
namespace {

struct MonitorFlags {
  std::string run;
  std::string from;  // empty: this machine
  bool json = false;
  double every_seconds = 0;  // 0: not given
  std::int64_t count = 0;    // 0: not given
  double idle_seconds = 30;
};

constexpr double kEverySeconds = 1;

void write_out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_or_throw();
}

// Redraws the table in place, as much as fits on the terminal.
class Redrawn {
 public:
  void draw(const std::string& text) {
    const auto columns = static_cast<std::size_t>(find_terminal().columns);
    const std::string shown = cut(broken(text, columns), terminal_rows() - 1, columns);
    write_out((drawn_ > 0 ? fmt::format("\x1b[{}A\x1b[J", drawn_) : std::string()) + shown);
    drawn_ = std::ranges::count(shown, '\n');
  }

 private:
  static std::ptrdiff_t terminal_rows() {
    winsize size = {};
    const bool told = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 2;
    return told ? size.ws_row : std::numeric_limits<std::ptrdiff_t>::max();
  }

  // Breaks lines where the terminal would, so that each line is one row of it.
  static std::string broken(const std::string& text, std::size_t columns) {
    std::string rows;
    std::size_t used = 0;  // columns used in this row
    for (const char byte : text) {
      const bool begins = (static_cast<unsigned char>(byte) & 0xc0) != 0x80;  // a UTF-8 character
      if (byte == '\n') {
        used = 0;
      } else if (begins && ++used > columns) {
        rows += '\n';
        used = 1;
      }
      rows += byte;
    }
    return rows;
  }

  // Cuts text above `most` lines, and appends a line that says so.
  static std::string cut(const std::string& text, std::ptrdiff_t most, std::size_t columns) {
    const std::ptrdiff_t lines = std::ranges::count(text, '\n');
    if (lines <= most) return text;
    std::size_t end = 0;
    for (std::ptrdiff_t line = 1; line < most; ++line) end = text.find('\n', end) + 1;
    const std::string hidden =
        fmt::format("{} lines are hidden: enlarge the terminal, or name a RUN", lines - most + 1);
    return text.substr(0, end) + hidden.substr(0, columns) + '\n';
  }

  std::ptrdiff_t drawn_ = 0;  // lines
};

std::string none_line(const MonitorFlags& flags) {
  return fmt::format("no training {} {}\n", flags.run.empty() ? "runs" : "in " + flags.run + " runs",
                     flags.from.empty() ? "on " + host_name() : "according to the files in " + flags.from);
}

// No terminal under a launcher, which may start this on several machines: their tables would overwrite each
// other.
Terminal own_terminal() {
  return std::getenv("OMPI_COMM_WORLD_RANK") == nullptr ? find_terminal() : Terminal{};
}

std::string tables_of(const std::vector<NodeView>& views, const MonitorFlags& flags,
                      const Terminal& terminal) {
  std::string text;
  for (const NodeView& view : views)
    if (!view.jobs.empty()) text += (text.empty() ? "" : "\n") + table_of(view, flags.idle_seconds, terminal);
  return text.empty() ? none_line(flags) : text;
}

int run_monitor(const Command& command) {
  StopSignals::of_process().end_quietly();
  const auto& flags = command.own<MonitorFlags>();
  const Terminal terminal = flags.json ? Terminal{} : own_terminal();
  const bool goes_on = flags.count == 0 && (flags.every_seconds > 0 || terminal.present);
  const std::int64_t looks = flags.count > 0 ? flags.count : 1;
  const auto interval = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(flags.every_seconds > 0 ? flags.every_seconds : kEverySeconds));
  NodeViewer viewer;
  Redrawn redrawn;
  auto next = std::chrono::steady_clock::now();
  for (std::int64_t look = 1;; ++look) {
    const std::vector<NodeView> views =
        flags.from.empty() ? std::vector{viewer.look(flags.run)} : view_files(flags.from, flags.run);
    if (flags.json)
      for (const NodeView& view : views) write_out(to_json(view, flags.idle_seconds) + '\n');
    else if (terminal.present && std::ranges::any_of(views, &NodeView::has_jobs))
      redrawn.draw(tables_of(views, flags, find_terminal()));
    else
      write_out(tables_of(views, flags, terminal));
    if (flags.from.empty()) remove_dead_jobs(views.front());
    const bool anybody_lives = std::ranges::any_of(views, &NodeView::anybody_lives);
    if (goes_on ? !anybody_lives : look >= looks) return exit_code::done;
    next = std::max(next + interval, std::chrono::steady_clock::now());  // this process may have been stopped
    std::this_thread::sleep_until(next);
  }
}

void monitor_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<MonitorFlags>();
  app.add_option("RUN", flags.run, "Show only the job that writes to this folder (its run.dir)");
  app.add_option("--from", flags.from,
                 "Read the files that the trainings of all nodes write to this folder (run.prometheus_dir), "
                 "instead of the state of this machine")
      ->type_name("FOLDER");
  app.add_flag("--json", flags.json,
               "Print a line of JSON for each sample, or for each file of --from; without --every and "
               "--count one sample");
  app.add_option("--every", flags.every_seconds,
                 "Sample again after this number of seconds (1 on a terminal), until no training runs")
      ->type_name("SECONDS")
      ->check(number_between(0.01, 86400));
  app.add_option("--count", flags.count, "Number of samples, even if no training runs")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  app.add_option("--idle", flags.idle_seconds,
                 "Name devices that a rank has held idle for this number of seconds (default: 30)")
      ->type_name("SECONDS")
      ->check(number_between(0, 1e9));
}

}  // namespace

extern const CommandEntry monitor_command = {
    .name = "monitor",
    .description = "Watch the trainings that run on this machine",
    .example =
        "lockstep monitor\n"
        "lockstep monitor --from /shared/metrics\n"
        "lockstep monitor runs/latest --json --every 5 | jq '.jobs[0].here[].busy'",
    .flags = monitor_flags,
    .alone = run_monitor};

}  // namespace lockstep
