// SPDX-License-Identifier: Apache-2.0
//
// Learning rate by step: linear warm-up, then constant, steps or half a cosine (Loshchilov and Hutter,
// "SGDR", 2017).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

enum class ScheduleKind { constant, step, cosine };

struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double base = 0.1;
  std::int64_t total_steps = 1;  // cosine reaches its end here
  // Steps 0 .. warmup_steps - 1 take base * (step + 1) / warmup_steps.
  std::int64_t warmup_steps = 0;
  std::vector<std::int64_t> milestones;  // step: from each on, the rate is multiplied by gamma
  double gamma = 0.1;
  double final_fraction = 0;  // cosine: ends at base * final_fraction

  // step counts from 0.
  double at(std::int64_t step) const;
};

// By name: a table in schedule.cpp, which says what each does after the warm-up.
std::vector<std::string> schedule_names();
// Throws ConfigError for an unknown name, with all that there are.
ScheduleKind schedule_kind(const std::string& name);

}  // namespace lockstep
