// SPDX-License-Identifier: Apache-2.0
#include "launch/busy_watch.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launch/account_json.h"
#include "launch/busy.h"

namespace lockstep {
namespace {

// So far above the threshold a device counts as busy again: what is near it would be told of again and again.
constexpr double kMargin = 0.05;

void add(StepLine& all, const StepLine& line) {
  const double before = all.account.total(), seconds = line.account.total();
  all.epoch = line.epoch;
  all.step = line.step;
  all.steps += line.steps;
  all.samples_per_second =
      (all.samples_per_second * before + line.samples_per_second * seconds) / (before + seconds);
  all.account += line.account;
  all.without_core_seconds += line.without_core_seconds;
  all.busy = busy_share(all.account, all.without_core_seconds);
}

}  // namespace

void BusyWatch::begin_anew() {
  low_ = {};
  low_lines_ = 0;
}

std::optional<IdleEvent> BusyWatch::look(const StepLine& line, double now) {
  if (line.busy >= options_.below) {
    begin_anew();
    if (line.busy >= options_.below + kMargin && ++high_lines_ >= options_.lines) told_.clear();
    return std::nullopt;
  }
  high_lines_ = 0;
  if (low_lines_++ == 0) first_step_ = line.step - line.steps + 1;
  add(low_, line);
  if (low_lines_ < options_.lines) return std::nullopt;
  IdleEvent event{.lines = low_, .first_step = first_step_};
  begin_anew();
  const std::optional<IdleCause> cause = find_idle_cause(event.lines, context_, advice_);
  if (!cause || cause->cause == told_ || (told_at_ && now - *told_at_ < options_.pause_seconds))
    return std::nullopt;
  told_ = cause->cause;
  told_at_ = now;
  event.cause = *cause;
  return event;
}

std::string to_text(const IdleEvent& event) {
  const IdleCause& cause = event.cause;
  return fmt::format("busy {:.0f} % in steps {} to {}: {}; {}: about {:.0f} samples/s ({:+.0f} %)",
                     100 * event.lines.busy, event.first_step, event.lines.step, cause.evidence, cause.change,
                     cause.samples_per_second,
                     100 * (cause.samples_per_second / event.lines.samples_per_second - 1));
}

std::string to_json(const IdleEvent& event, double time) {
  return nlohmann::ordered_json{{"kind", "idle"},
                                {"time", time},
                                {"first_step", event.first_step},
                                {"step", event.lines.step},
                                {"busy", event.lines.busy},
                                {"cause", event.cause.cause},
                                {"lost_seconds", event.cause.lost_seconds},
                                {"without_core_seconds", event.lines.without_core_seconds},
                                {"account", json_of(event.lines.account)},
                                {"key", event.cause.key},
                                {"value", event.cause.value},
                                {"samples_per_second", event.lines.samples_per_second},
                                {"samples_per_second_estimated", event.cause.samples_per_second},
                                {"text", to_text(event)}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep
