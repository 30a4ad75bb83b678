// SPDX-License-Identifier: Apache-2.0
//
// BusyWatch: reads the lines of a StepSeries and reports when the device was idle for several lines in a row,
// or busy and far below its attainable rate, with the cause and a change. It repeats a cause only after the
// device was busy or another cause was reported, and waits pause_seconds between two reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launch/observe/account/idle_cause.h"
#include "launch/observe/run_files/event_command.h"

namespace lockstep {

struct BusyOptions {
  double below = 0.7;       // share of time; 0 disables all reports, also those of slow lines
  double peak_below = 0.1;  // share of the attainable rate; 0 disables reports of slow lines
  std::int64_t lines = 3;   // consecutive lines before a report
  double pause_seconds = 60;
  std::string command = "none";  // shell command that runs for each event
  // False also for kRedacted, which the files of a run contain instead of a secret command.
  bool runs_command() const { return command != "none" && command != kRedacted; }
};

// A report on idle or slow lines.
struct IdleEvent {
  StepLine lines;  // all lines of the report, merged
  std::int64_t first_step = 0;
  IdleCause cause;
};

class BusyWatch {
 public:
  BusyWatch(const BusyOptions& options, const IdleContext& context) : options_(options), context_(context) {}

  // now: seconds of a monotonic clock. The first line and the line after an event are ignored: they include
  // first touches of memory and the measurements for the event.
  std::optional<IdleEvent> look(const StepLine& line, double now);
  // advice: on the communication of the last epoch.
  void set_advice(const std::optional<Advice>& advice) { advice_ = advice; }

 private:
  bool is_low(const StepLine& line) const;
  bool is_slow(const StepLine& line) const;
  void restart();
  std::optional<IdleCause> cause_of_low_lines() const;

  BusyOptions options_;
  IdleContext context_;
  std::optional<Advice> advice_;
  bool ignores_next_ = true;
  StepLine low_;  // idle or slow lines in a row, merged
  std::int64_t low_lines_ = 0;
  std::int64_t slowed_lines_ = 0;  // lines among low_lines_ with a throttled device clock
  std::optional<SlowedDevice> slowed_;
  std::int64_t first_step_ = 0;
  std::int64_t last_step_ = 0;   // of the previous line
  std::int64_t high_lines_ = 0;  // busy lines since the last idle or slow one
  std::string last_cause_;       // of the last event; empty after the device was busy
  std::optional<double> last_event_at_;
};

// "busy 41 % in steps 101 to 250: compute waits 3.2 ms per step for data (41 % of the time);
// data.loader=preload: about 12000 samples/s (+69 %)"
std::string to_text(const IdleEvent& event);
// A line of events.jsonl: kind ("idle"), step, first_step, busy, peak, cause, lost_seconds,
// without_core_seconds, account, text, key, value, samples_per_second, samples_per_second_estimated, time
// (seconds since 1970).
std::string to_json(const IdleEvent& event, double time);

}  // namespace lockstep
