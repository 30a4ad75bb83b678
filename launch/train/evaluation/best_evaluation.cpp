// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/best_evaluation.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include <fmt/format.h>

#include "core/text/enum_words.h"
#include "core/text/text.h"
#include "launch/train/trainer.h"

namespace lockstep {
namespace {

constexpr const char* kBy = "run.best.by";

template <typename T>
void take_value(const StateCopy& saved, const std::string& name, T& value) {
  const auto found = std::ranges::find(saved.values, name, &StateCopy::Value::name);
  if (found != saved.values.end() && std::holds_alternative<T>(found->value))
    value = std::get<T>(found->value);
}

// Calls shown(name, address) for each remembered value.
template <typename Seen, typename Shown>
void for_each_value(Seen& seen, const Shown& shown) {
  shown("run.best.value", &seen.best);
  shown("run.best.epoch", &seen.best_epoch);
  shown("run.best.reference", &seen.reference);
  shown("run.best.reference_epoch", &seen.reference_epoch);
  shown("run.best.last_epoch", &seen.last_epoch);
  shown("run.best.kept_epoch", &seen.kept_epoch);
}

}  // namespace

bool BestEvaluation::better(double value, double than, double by) const {
  return settings_.by == BestBy::accuracy ? value > than + by : value < than - by;
}

bool BestEvaluation::add(const Evaluation& evaluation, std::int64_t epochs) {
  const double value = settings_.by == BestBy::accuracy ? evaluation.accuracy : evaluation.loss;
  const bool is_number = !std::isnan(evaluation.accuracy) && !std::isnan(evaluation.loss);
  if (seen_.last_epoch == 0) seen_.reference_epoch = epochs - 1;
  seen_.last_epoch = epochs;
  if (is_number && (seen_.best_epoch == 0 || better(value, seen_.reference, settings_.stop_min_delta))) {
    seen_.reference = value;
    seen_.reference_epoch = epochs;
  }
  if (!is_number || (seen_.best_epoch > 0 && !better(value, seen_.best, 0))) return false;
  seen_.best = value;
  seen_.best_epoch = epochs;
  return true;
}

bool BestEvaluation::stops() const {
  return settings_.stop_after_epochs > 0 &&
         seen_.last_epoch - seen_.reference_epoch >= settings_.stop_after_epochs;
}

std::string BestEvaluation::reason() const {
  const bool by_accuracy = settings_.by == BestBy::accuracy;
  const auto shown = [&](double value) {
    return by_accuracy ? fmt::format("{:.2f} %", 100 * value) : fmt::format("{:.4g}", value);
  };
  const std::int64_t without = seen_.last_epoch - seen_.reference_epoch;
  if (seen_.best_epoch == 0)
    return fmt::format(
        "training stops early after epoch {}: the test loss was NaN in each evaluation of {} "
        "(run.stop_after_epochs = {}); lower optimizer.learning_rate",
        seen_.last_epoch, counted(without, "epoch"), settings_.stop_after_epochs);
  const std::string more =
      settings_.stop_min_delta > 0 ? fmt::format(" by more than {}", shown(settings_.stop_min_delta)) : "";
  return fmt::format(
      "training stops early after epoch {}: the test {} of epoch {}, {}, was not surpassed{} in {} "
      "(run.stop_after_epochs = {})",
      seen_.last_epoch, word_of(settings_.by), seen_.reference_epoch, shown(seen_.reference), more,
      counted(without, "epoch"), settings_.stop_after_epochs);
}

void BestEvaluation::visit_state(StateVisitor& visitor) {
  auto by = static_cast<std::int64_t>(settings_.by);
  visitor.value(kBy, StateScope::replicated, &by);
  for_each_value(seen_,
                 [&](const char* name, auto* place) { visitor.value(name, StateScope::replicated, place); });
}

bool BestEvaluation::take(const StateCopy& saved) {
  std::int64_t by = -1;
  take_value(saved, kBy, by);
  if (by != static_cast<std::int64_t>(settings_.by)) return by < 0;
  seen_.kept_epoch = -1;
  for_each_value(seen_, [&](const char* name, auto* place) { take_value(saved, name, *place); });
  if (seen_.kept_epoch < 0) seen_.kept_epoch = seen_.best_epoch;  // a checkpoint of an older Lockstep
  return true;
}

}  // namespace lockstep
