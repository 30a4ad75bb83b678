// SPDX-License-Identifier: Apache-2.0
#include "models/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep {

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) return base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  switch (kind) {
    case ScheduleKind::constant:
      return base;
    case ScheduleKind::step: {
      const auto passed =
          std::count_if(milestones.begin(), milestones.end(), [&](std::int64_t m) { return step >= m; });
      return base * std::pow(gamma, static_cast<double>(passed));
    }
    case ScheduleKind::cosine: {
      const double length = static_cast<double>(std::max<std::int64_t>(total_steps - warmup_steps, 1));
      const double progress = std::min(static_cast<double>(step - warmup_steps) / length, 1.0);
      const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      return base * (final_fraction + (1.0 - final_fraction) * cosine);
    }
  }
  return base;
}

}  // namespace lockstep
