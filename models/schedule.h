// SPDX-License-Identifier: Apache-2.0
//
// Learning rate by step: linear warm-up, then a schedule from a table.
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

// A row of the table of schedules, selected by schedule.name.
struct ScheduleKind {
  std::string name;
  // The factor of the base rate for a step after the warm-up.
  std::function<double(const Schedule& schedule, std::int64_t step)> factor;
  std::span<const NumberOption> options = {};  // keys schedule.NAME.OPTION
};
// The schedules that ship with Lockstep: constant, step, and half a cosine (Loshchilov and Hutter, "SGDR",
// 2017).
const std::vector<ScheduleKind>& schedule_kinds();
// Throws ConfigError for a name that is not in the table; the message lists all names.
const ScheduleKind& schedule_kind(const std::string& name,
                                  const std::vector<ScheduleKind>& table = schedule_kinds());

// How the learning rate scales with the samples per step: proportional (Goyal et al., "Accurate, Large
// Minibatch SGD", 2017), or with their square root (Krizhevsky, "One weird trick for parallelizing
// convolutional neural networks", 2014).
enum class RateScaling { none, linear, root };
inline constexpr std::string_view kRateScalingWords[] = {"none", "linear", "sqrt"};
constexpr std::span<const std::string_view> words_of(RateScaling) { return kRateScalingWords; }

// The schedule as users set it, in epochs.
struct ScheduleSettings {
  std::string name = "constant";
  double learning_rate = 0.1;  // the highest, before scaling
  RateScaling scaling = RateScaling::none;
  std::int64_t scale_batch = 256;  // samples per step that learning_rate is meant for, if it is scaled
  double warmup_epochs = 0;        // linear, from learning_rate / warm-up steps
  std::vector<double> milestones;  // step: epochs at which the rate is multiplied by gamma; ascending
  double gamma = 0.1;
  double final_fraction = 0;  // cosine: ends at learning_rate * final_fraction
  OwnNumbers own;             // own numbers of schedules
};

struct Schedule {
  ScheduleKind kind = schedule_kind("constant");
  double base = 0.1;
  std::int64_t total_steps = 1;  // end of the cosine
  // train.steps ends it before the last epoch: its place is the number of steps, also where earlier steps had
  // another number of samples.
  bool counts_steps = false;
  // Steps 0 .. warmup_steps - 1 use base * (step + 1) / warmup_steps.
  std::int64_t warmup_steps = 0;
  std::vector<std::int64_t> milestones = {};  // step: first steps with a rate multiplied by gamma once more
  double gamma = 0.1;
  double final_fraction = 0;  // cosine: ends at base * final_fraction
  OwnNumbers own = {};

  // The schedule's step after `steps` steps, in which `in_data` steps of the present number of samples fit.
  std::int64_t place(std::int64_t steps, std::int64_t in_data) const {
    return counts_steps ? steps : in_data;
  }
  // step counts from 0.
  double at(std::int64_t step) const;
  // False if the warm-up is longer than the schedule, so that every step has a rate below `base`.
  bool reaches_base() const { return warmup_steps <= total_steps; }
  // The fraction of the steps from the warm-up to total_steps that have passed at this step: from 0 to 1.
  double progress(std::int64_t step) const;
};

// The highest rate for a global batch of this many samples: learning_rate, or learning_rate times
// global_batch / scale_batch, or times its square root.
double scaled_rate(const ScheduleSettings& settings, std::int64_t global_batch);

// steps_before(e): the number of steps in the first e epochs. The base is learning_rate without scaling.
Schedule make_schedule(const ScheduleSettings& settings, std::int64_t epochs,
                       const std::function<std::int64_t(std::int64_t)>& steps_before,
                       const std::vector<ScheduleKind>& table = schedule_kinds());

}  // namespace lockstep
