// SPDX-License-Identifier: Apache-2.0
#include "models/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep {
namespace {

double constant(const Schedule&, std::int64_t) { return 1; }

double in_steps(const Schedule& schedule, std::int64_t step) {
  const auto passed = std::ranges::count_if(schedule.milestones, [&](std::int64_t m) { return step >= m; });
  return std::pow(schedule.gamma, static_cast<double>(passed));
}

double cosine(const Schedule& schedule, std::int64_t step) {
  const std::int64_t warmup = schedule.warmup_steps;
  const double length = static_cast<double>(std::max<std::int64_t>(schedule.total_steps - warmup, 1));
  const double progress = std::min(static_cast<double>(step - warmup) / length, 1.0);
  const double height = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return schedule.final_fraction + (1.0 - schedule.final_fraction) * height;
}

struct Entry {
  const char* name;
  ScheduleKind kind;
  // Of the base, in a step behind the warm-up.
  double (*factor)(const Schedule& schedule, std::int64_t step);
};
constexpr Entry kSchedules[] = {{"constant", ScheduleKind::constant, constant},
                                {"step", ScheduleKind::step, in_steps},
                                {"cosine", ScheduleKind::cosine, cosine}};

}  // namespace

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) return base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  return base * std::ranges::find(kSchedules, kind, &Entry::kind)->factor(*this, step);
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kSchedules) names.emplace_back(entry.name);
  return names;
}

ScheduleKind schedule_kind(const std::string& name) {
  const auto found = std::ranges::find(kSchedules, name, &Entry::name);
  if (found != std::end(kSchedules)) return found->kind;
  throw ConfigError(
      fmt::format("unknown schedule \"{}\": allowed are {}", name, fmt::join(schedule_names(), ", ")));
}

}  // namespace lockstep
