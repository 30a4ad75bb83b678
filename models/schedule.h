// SPDX-License-Identifier: Apache-2.0
//
// Learning rate by step: linear warm-up, then what a row of the table of schedules says.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/number_option.h"

namespace lockstep {

struct Schedule;

// A row of the table of schedules: what schedule.name may be, and what it means.
struct ScheduleKind {
  std::string name;
  // Of the base, in a step behind the warm-up.
  std::function<double(const Schedule& schedule, std::int64_t step)> factor;
  std::span<const NumberOption> options = {};  // keys schedule.NAME.OPTION
};
// Those that are shipped: constant, step, and half a cosine (Loshchilov and Hutter, "SGDR", 2017).
const std::vector<ScheduleKind>& schedule_kinds();
// Throws ConfigError for a name that the table has not, with all that it has.
const ScheduleKind& schedule_kind(const std::string& name,
                                  const std::vector<ScheduleKind>& table = schedule_kinds());

// How a learning rate follows the samples of a step: in proportion (Goyal et al., "Accurate, Large Minibatch
// SGD", 2017), or to their square root (Krizhevsky, "One weird trick for parallelizing convolutional neural
// networks", 2014).
enum class RateScaling { none, linear, root };
inline constexpr std::string_view kRateScalingWords[] = {"none", "linear", "sqrt"};
constexpr std::span<const std::string_view> words_of(RateScaling) { return kRateScalingWords; }

// As a person gives it, in epochs.
struct ScheduleSettings {
  std::string name = "constant";
  double learning_rate = 0.1;  // the highest, but for scaling
  RateScaling scaling = RateScaling::none;
  std::int64_t scale_batch = 256;  // samples of a step that learning_rate was chosen for, where it is scaled
  double warmup_epochs = 0;        // linear, from learning_rate / warm-up steps
  std::vector<double> milestones;  // step: epochs at which the rate is multiplied by gamma; ascending
  double gamma = 0.1;
  double final_fraction = 0;  // cosine: ends at learning_rate * final_fraction
  OwnNumbers own;             // of schedules
};

struct Schedule {
  ScheduleKind kind = schedule_kind("constant");
  double base = 0.1;
  std::int64_t total_steps = 1;  // cosine reaches its end here
  // Steps 0 .. warmup_steps - 1 take base * (step + 1) / warmup_steps.
  std::int64_t warmup_steps = 0;
  std::vector<std::int64_t> milestones = {};  // step: from each on, the rate is multiplied by gamma
  double gamma = 0.1;
  double final_fraction = 0;  // cosine: ends at base * final_fraction
  OwnNumbers own = {};

  // step counts from 0.
  double at(std::int64_t step) const;
  // How much of the way from the warm-up to total_steps lies behind this step: from 0 to 1.
  double progress(std::int64_t step) const;
};

// The highest rate with so many samples a step, of all ranks: learning_rate, or that times
// global_batch / scale_batch, or times the square root of it.
double scaled_rate(const ScheduleSettings& settings, std::int64_t global_batch);

// total_steps: of all epochs. The base is learning_rate as it is given.
Schedule make_schedule(const ScheduleSettings& settings, std::int64_t epochs, std::int64_t total_steps,
                       const std::vector<ScheduleKind>& table = schedule_kinds());

}  // namespace lockstep
