// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/report.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/system/wrapped_text.h"
#include "core/text/enum_words.h"
#include "core/text/json_text.h"
#include "core/text/text.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/version.h"

namespace lockstep {
namespace {

using SweepOutcomeJson = nlohmann::ordered_json;

std::string counted_of(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", thousands(static_cast<double>(count)), what, count == 1 ? "" : "s");
}

// Removes the quotes of a TOML string without escapes; returns other values unchanged.
std::string without_quotes(const std::string& value) {
  const bool plain = value.size() >= 2 && value.front() == '"' && value.back() == '"' &&
                     value.find('\\') == std::string::npos;
  return plain ? value.substr(1, value.size() - 2) : value;
}

const char* state_of(const SweepRow& row) {
  if (!row.problem.empty()) return "failed";
  if (row.complete) return "complete";
  return row.epochs > 0 ? "stopped early" : "not begun";
}

SweepOutcomeJson as_json(const SweepRow& row) {
  SweepOutcomeJson json = {{"trial", row.trial},   {"state", state_of(row)}, {"settings", row.settings},
                           {"epochs", row.epochs}, {"steps", row.steps},     {"seconds", row.seconds},
                           {"accuracy", nullptr},  {"loss", nullptr},        {"samples_per_second", nullptr},
                           {"pareto", row.pareto}, {"parameters", nullptr},  {"flops_per_sample", nullptr}};
  if (row.epochs > 0) {
    json["accuracy"] = row.measure.accuracy;
    json["loss"] = row.measure.loss;
    json["samples_per_second"] = row.measure.samples_per_second;
    json["parameters"] = row.cost.parameters;
    json["flops_per_sample"] = row.cost.flops_per_sample;
  }
  if (!row.problem.empty()) json["problem"] = row.problem;
  return json;
}

// True if trials trained networks of different cost.
bool costs_differ(const SweepOutcome& outcome) {
  const SweepRow* first = nullptr;
  for (const SweepRow& row : outcome.rows) {
    if (row.epochs == 0) continue;
    if (first == nullptr) first = &row;
    if (!(row.cost == first->cost)) return true;
  }
  return false;
}

// On a terminal, text that does not fit beside the start goes below it.
std::string sweep_line(const std::string& start, const std::string& text, const Terminal& terminal) {
  constexpr std::size_t kHanging = 8;
  const auto columns = static_cast<std::size_t>(terminal.columns);
  if (!terminal.present || start.size() + text.size() < columns) return start + text + '\n';
  const std::string below = wrapped(text, {.indent = kHanging, .columns = columns});
  if (start.empty()) return below.substr(kHanging) + '\n';
  return start.substr(0, start.find_last_not_of(' ') + 1) + '\n' + below + '\n';
}

}  // namespace

std::string sweep_header(const SweepPlan& plan, const SweepSlots& slots, std::int64_t epochs,
                         std::int64_t epochs_done) {
  const SweepRules rules = plan.rules(slots.count);
  std::string text = fmt::format("Lockstep {}: {} of {}, {} at once, each with {}", kVersion,
                                 counted_of(rules.trials, "trial"), plan.config, slots.count,
                                 counted_of(plan.ranks, "rank"));
  const TuneSettings& searched = plan.trials.front();
  // A reproducible training has one thread unless it is given.
  const std::int64_t threads = plan.base.reproducible && plan.base.threads == 0 ? 1 : slots.threads;
  if (!searched.contains("train.threads") && !searched.contains("train.reproducible"))
    text += fmt::format(" of {}", counted_of(threads, "thread"));
  if (rules.rungs.size() > 1)
    text += fmt::format("; compared after {} of {} epochs",
                        fmt::join(rules.rungs.begin(), rules.rungs.end() - 1, ", "), rules.rungs.back());
  const std::int64_t whole = rules.trials * rules.rungs.back();
  const bool may_end_early = plan.base.trainer.max_steps > 0 || plan.base.best.stop_after_epochs > 0 ||
                             searched.contains("train.steps");
  if (rules.rungs.size() == 1 || epochs == whole)
    text += fmt::format("; {}{}", may_end_early ? "at most " : "", counted_of(epochs, "epoch"));
  else
    text += fmt::format("; about {}, or {} if every trial were trained to its end",
                        counted_of(epochs, "epoch"), thousands(static_cast<double>(whole)));
  if (epochs_done > 0) text += fmt::format("; {} already done", counted_of(epochs_done, "epoch"));
  return text;
}

std::string sweep_result_line(const SweepResult& result, const TuneSettings& settings, std::int64_t epochs) {
  if (!result.problem.empty())
    return fmt::format("trial {} failed: {} ({})", result.job.trial, result.problem, describe(settings));
  return fmt::format("trial {}: {:.2f} % after {} of {}, {} ({})", result.job.trial,
                     100 * result.measure.accuracy, result.epochs,
                     counted_of(std::max(epochs, result.epochs), "epoch"),
                     per_second(result.measure.samples_per_second, "samples"), describe(settings));
}

std::string sweep_trials(const SweepPlan& plan, const SweepSlots& slots) {
  const SweepRules rules = plan.rules(slots.count);
  std::string text = sweep_header(plan, slots, SweepSearch(rules).expected_epochs(), 0) + "\n";
  for (std::size_t trial = 0; trial < plan.trials.size(); ++trial)
    text += fmt::format("trial {}: {}\n", trial, describe(plan.trials[trial]));
  return text;
}

std::string sweep_table(const SweepOutcome& outcome, const Terminal& terminal) {
  const bool costs = costs_differ(outcome);
  std::string text = fmt::format(
      "{:>6}  {:>6}  {:>10}  {:>8}  {:>10}{}   {}\n", "trial", "epochs", "accuracy", "loss", "samples/s",
      costs ? fmt::format("  {:>10}  {:>8}", "parameters", "MFLOP") : "", "settings");
  for (const SweepRow& row : outcome.rows) {
    if (row.epochs == 0) continue;
    const std::string cost =
        costs ? fmt::format("  {:>10}  {:>8.3g}", thousands(static_cast<double>(row.cost.parameters)),
                            1e-6 * static_cast<double>(row.cost.flops_per_sample))
              : "";
    const std::string start = fmt::format(
        "{:>6}  {:>6}  {:>8.2f} %  {:>8.4f}  {:>10}{} {} ", row.trial, row.epochs, 100 * row.measure.accuracy,
        row.measure.loss, rounded_rate(row.measure.samples_per_second), cost, row.pareto ? '*' : ' ');
    text +=
        sweep_line(start, describe(row.settings) + (row.problem.empty() ? "" : ", then failed"), terminal);
  }
  if (std::ranges::any_of(outcome.rows, &SweepRow::pareto))
    text += "* on the Pareto front of accuracy and samples/s (complete trials only)\n";
  if (costs) text += "MFLOP: millions of operations to train on one sample, forward and backward\n";
  for (const SweepRow& row : outcome.rows)
    if (!row.problem.empty())
      text += sweep_line(fmt::format("  trial {} failed: ", row.trial),
                         fmt::format("{} ({})", row.problem, describe(row.settings)), terminal);
  const std::int64_t steps = outcome.steps(), all = outcome.steps_of_all();
  if (all > 0) {
    const double percent = 100.0 * static_cast<double>(steps) / static_cast<double>(all);
    text += sweep_line(
        "",
        fmt::format("{}, {:.0f} % of the {} steps that complete training of every trial would take",
                    counted_of(steps, "step"), percent, thousands(static_cast<double>(all))),
        terminal);
  }
  if (outcome.busy_share)
    text += fmt::format("{} in {}, slots busy {:.1f} % of the time\n", counted_of(outcome.jobs, "job"),
                        duration(outcome.seconds), 100 * *outcome.busy_share);
  return text;
}

std::string sweep_json(const SweepOutcome& outcome, const std::string& dir) {
  SweepOutcomeJson json = {{"dir", dir},
                           {"objective", word_of(outcome.objective)},
                           {"best", nullptr},
                           {"trials", SweepOutcomeJson::array()},
                           {"steps", outcome.steps()},
                           {"steps_of_all", outcome.steps_of_all()},
                           {"slots", outcome.slots},
                           {"jobs", outcome.jobs},
                           {"seconds", outcome.seconds},
                           {"busy_share", nullptr}};
  if (outcome.busy_share) json["busy_share"] = *outcome.busy_share;
  if (const SweepRow* best = outcome.best()) json["best"] = best->trial;
  for (const SweepRow& row : outcome.rows) json["trials"].push_back(as_json(row));
  return dumped(json, 1);
}

std::string sweep_csv(const SweepOutcome& outcome, const SweepSpace& space) {
  std::string text =
      "trial,state,epochs,steps,accuracy,loss,samples_per_second,parameters,flops_per_sample,"
      "seconds,pareto";
  for (const SweepAxis& axis : space.axes()) text += ',' + csv_field(axis.key);
  text += ",problem\n";
  for (const SweepRow& row : outcome.rows) {
    text += fmt::format("{},{},{},{},", row.trial, state_of(row), row.epochs, row.steps);
    text += row.epochs > 0
                ? fmt::format("{},{},{},{},{},", row.measure.accuracy, row.measure.loss,
                              row.measure.samples_per_second, row.cost.parameters, row.cost.flops_per_sample)
                : ",,,,,";
    text += fmt::format("{:.3f},{}", row.seconds, row.pareto ? "yes" : "no");
    for (const SweepAxis& axis : space.axes())
      text += ',' + csv_field(without_quotes(row.settings.at(axis.key)));
    text += ',' + csv_field(row.problem) + '\n';
  }
  return text;
}

std::string best_toml(const SweepRow& best, const Config& config, const Registry& registry,
                      std::int64_t ranks) {
  return fmt::format(
      "# Written by lockstep sweep: trial {}, {:.2f} % after {}, {} while other trials "
      "ran{}.\n# {}\n{}",
      best.trial, 100 * best.measure.accuracy, counted_of(best.epochs, "epoch"),
      per_second(best.measure.samples_per_second, "samples"),
      ranks > 1 ? fmt::format(", on {} each", counted_of(ranks, "rank")) : "", describe(best.settings),
      to_toml(config, registry));
}

}  // namespace lockstep
