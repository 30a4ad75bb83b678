// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/busy_watch.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text/json_text.h"
#include "core/text/text.h"
#include "launch/observe/account/account_json.h"
#include "launch/observe/account/busy.h"

namespace lockstep {
namespace {

// A device counts as busy again only this far above the threshold; otherwise a device near the threshold is
// reported repeatedly.
constexpr double kMargin = 0.05;

void add(StepLine& all, const StepLine& line) {
  const double before = all.account.total(), seconds = line.account.total();
  all.epoch = line.epoch;
  all.step = line.step;
  all.steps += line.steps;
  const auto mean = [&](double so_far, double more) {
    return (so_far * before + more * seconds) / (before + seconds);
  };
  all.samples_per_second = mean(all.samples_per_second, line.samples_per_second);
  if (line.peak) all.peak = mean(all.peak.value_or(0), *line.peak);
  all.account += line.account;
  all.without_core_seconds += line.without_core_seconds;
  all.loader_seconds += line.loader_seconds;
  all.evaluation_seconds += line.evaluation_seconds;
  all.telling_seconds += line.telling_seconds;
  all.saving_seconds += line.saving_seconds;
  all.busy = busy_share(all.account, all.without_core_seconds);
}

}  // namespace

bool BusyWatch::is_low(const StepLine& line) const { return overall_busy(line) < options_.below; }
bool BusyWatch::is_slow(const StepLine& line) const { return line.peak && *line.peak < options_.peak_below; }

void BusyWatch::restart() {
  low_ = {};
  low_lines_ = slowed_lines_ = 0;
}

// A throttled clock explains all other causes, so it comes first.
std::optional<IdleCause> BusyWatch::cause_of_low_lines() const {
  if (slowed_ && slowed_lines_ == low_lines_) return cause_of(*slowed_, low_);
  if (is_low(low_)) return find_idle_cause(low_, context_, advice_);
  return is_slow(low_) ? find_slow_cause(low_, context_) : std::nullopt;
}

std::optional<IdleEvent> BusyWatch::look(const StepLine& line, double now) {
  const std::int64_t steps_before = std::exchange(last_step_, line.step);
  if (std::exchange(ignores_next_, false)) return std::nullopt;
  const std::optional<SlowedDevice> slowed = context_.slowed ? context_.slowed() : std::nullopt;
  if (!is_low(line) && !is_slow(line) && !slowed) {
    restart();
    if (overall_busy(line) >= options_.below + kMargin && ++high_lines_ >= options_.lines)
      last_cause_.clear();
    return std::nullopt;
  }
  high_lines_ = 0;
  if (slowed) {
    slowed_ = slowed;
    ++slowed_lines_;
  }
  if (low_lines_++ == 0) first_step_ = steps_before + 1;
  add(low_, line);
  if (low_lines_ < options_.lines) return std::nullopt;
  IdleEvent event{.lines = low_, .first_step = first_step_};
  const std::optional<IdleCause> cause = cause_of_low_lines();
  restart();
  if (!cause || cause->cause == last_cause_ ||
      (last_event_at_ && now - *last_event_at_ < options_.pause_seconds))
    return std::nullopt;
  ignores_next_ = true;
  last_cause_ = cause->cause;
  last_event_at_ = now;
  event.cause = *cause;
  return event;
}

std::string to_text(const IdleEvent& event) {
  const IdleCause& cause = event.cause;
  std::string text = fmt::format("busy {:.0f} %", 100 * overall_busy(event.lines));
  if (event.lines.peak) text += fmt::format(", peak {:.0f} %", 100 * *event.lines.peak);
  text += fmt::format(" in steps {} to {}: {}; {}", event.first_step, event.lines.step, cause.evidence,
                      cause.change);
  if (cause.samples_per_second <= 0) return text;
  return text + fmt::format(": about {} samples/s ({:+.0f} %)", short_number(cause.samples_per_second),
                            100 * (cause.samples_per_second / overall_rate(event.lines) - 1));
}

std::string to_json(const IdleEvent& event, double time) {
  const double rate = event.cause.samples_per_second;
  const std::optional<double> estimate = rate > 0 ? std::optional(rate) : std::nullopt;
  return dumped(nlohmann::ordered_json{{"kind", "idle"},
                                       {"time", time},
                                       {"first_step", event.first_step},
                                       {"step", event.lines.step},
                                       {"busy", overall_busy(event.lines)},
                                       {"peak", json_or_null(event.lines.peak)},
                                       {"cause", event.cause.cause},
                                       {"lost_seconds", event.cause.lost_seconds},
                                       {"without_core_seconds", event.lines.without_core_seconds},
                                       {"account", json_of(event.lines.account)},
                                       {"key", event.cause.key},
                                       {"value", event.cause.value},
                                       {"samples_per_second", overall_rate(event.lines)},
                                       {"samples_per_second_estimated", json_or_null(estimate)},
                                       {"text", to_text(event)}});
}

}  // namespace lockstep
