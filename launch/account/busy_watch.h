// SPDX-License-Identifier: Apache-2.0
//
// BusyWatch: looks at the lines of a StepSeries and says when the device was not busy for several of them, or
// busy and far from what it could do, why, and what to change. It says so once: again only when the device
// was busy meanwhile, or for another cause, and never sooner than a pause after the last time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launch/account/idle_cause.h"
#include "launch/run_files/event_command.h"

namespace lockstep {

struct BusyOptions {
  double below = 0.7;       // share of time; 0: nothing is said
  double peak_below = 0.1;  // share of what is attainable; 0: a device that is busy is not asked how fast
  std::int64_t lines = 3;   // in a row
  double pause_seconds = 60;
  std::string command = "none";  // of sh, told of each event
  // Whether there is one. What a run's files have in its place is none.
  bool runs_command() const { return command != "none" && command != kRedacted; }
};

// What it says of the lines that were not busy, or slow.
struct IdleEvent {
  StepLine lines;  // all of them as one
  std::int64_t first_step = 0;
  IdleCause cause;
};

class BusyWatch {
 public:
  BusyWatch(const BusyOptions& options, const IdleContext& context) : options_(options), context_(context) {}

  // now: in seconds, of any clock. The first line is not looked at, nor is the one after an event: memory
  // that is touched for the first time, and what was measured for the event, are in them.
  std::optional<IdleEvent> look(const StepLine& line, double now);
  // On the communication of an epoch that is over.
  void set_advice(const std::optional<Advice>& advice) { advice_ = advice; }

 private:
  bool is_low(const StepLine& line) const;
  bool is_slow(const StepLine& line) const;
  void begin_anew();
  std::optional<IdleCause> cause_of_low_lines() const;

  BusyOptions options_;
  IdleContext context_;
  std::optional<Advice> advice_;
  bool looks_ = false;  // at the next line
  StepLine low_;        // lines in a row that were not busy, or slow, as one
  std::int64_t low_lines_ = 0;
  std::int64_t slowed_lines_ = 0;  // of them: a device's clock was held down
  std::optional<SlowedDevice> slowed_;
  std::int64_t first_step_ = 0;
  std::int64_t high_lines_ = 0;  // in a row that were
  std::string told_;             // the cause of the last event, as long as it may last
  std::optional<double> told_at_;
};

// "busy 41 % in steps 101 to 250: compute waits 3.2 ms a step for data (41 % of the time);
// data.loader=preload: about 12000 samples/s (+69 %)"
std::string to_text(const IdleEvent& event);
// The object events.jsonl gets: kind ("idle"), step, first_step, busy, peak, cause, lost_seconds, account,
// text, key, value, samples_per_second, samples_per_second_estimated, time (seconds since 1970).
std::string to_json(const IdleEvent& event, double time);

}  // namespace lockstep
