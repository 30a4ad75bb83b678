// SPDX-License-Identifier: Apache-2.0
#include "models/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/text/named_entries.h"

namespace lockstep {
namespace {

double constant(const Schedule&, std::int64_t) { return 1; }

double in_steps(const Schedule& schedule, std::int64_t step) {
  const auto passed = std::ranges::count_if(schedule.milestones, [&](std::int64_t m) { return step >= m; });
  return std::pow(schedule.gamma, static_cast<double>(passed));
}

double cosine(const Schedule& schedule, std::int64_t step) {
  const double height = 0.5 * (1.0 + std::cos(std::numbers::pi * schedule.progress(step)));
  return schedule.final_fraction + (1.0 - schedule.final_fraction) * height;
}

}  // namespace

const std::vector<ScheduleKind>& schedule_kinds() {
  static const std::vector<ScheduleKind> table = {
      {"constant", constant}, {"step", in_steps}, {"cosine", cosine}};
  return table;
}

const ScheduleKind& schedule_kind(const std::string& name, const std::vector<ScheduleKind>& table) {
  return entry_named(name, table, "schedule");
}

double Schedule::progress(std::int64_t step) const {
  const double length = static_cast<double>(std::max<std::int64_t>(total_steps - warmup_steps, 1));
  return std::min(static_cast<double>(step - warmup_steps) / length, 1.0);
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) return base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  return base * kind.factor(*this, step);
}

double scaled_rate(const ScheduleSettings& settings, std::int64_t global_batch) {
  const double times = static_cast<double>(global_batch) / static_cast<double>(settings.scale_batch);
  switch (settings.scaling) {
    case RateScaling::none:
      break;
    case RateScaling::linear:
      return settings.learning_rate * times;
    case RateScaling::root:
      return settings.learning_rate * std::sqrt(times);
  }
  return settings.learning_rate;
}

Schedule make_schedule(const ScheduleSettings& settings, std::int64_t epochs,
                       const std::function<std::int64_t(std::int64_t)>& steps_before,
                       const std::vector<ScheduleKind>& table) {
  const auto steps = [&](double of_epochs) {
    const auto whole = static_cast<std::int64_t>(of_epochs);
    const std::int64_t begin = steps_before(whole), length = steps_before(whole + 1) - begin;
    const double part = (of_epochs - static_cast<double>(whole)) * static_cast<double>(length);
    return begin + static_cast<std::int64_t>(std::llround(part));
  };
  Schedule schedule{.kind = schedule_kind(settings.name, table),
                    .base = settings.learning_rate,
                    .total_steps = steps_before(epochs),
                    .warmup_steps = steps(settings.warmup_epochs),
                    .gamma = settings.gamma,
                    .final_fraction = settings.final_fraction,
                    .own = settings.own};
  for (const double epoch : settings.milestones) schedule.milestones.push_back(steps(epoch));
  return schedule;
}

}  // namespace lockstep
