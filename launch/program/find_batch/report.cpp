// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text/enum_words.h"
#include "core/text/json_text.h"
#include "core/text/units.h"
#include "launch/observe/charts/svg_chart.h"
#include "launch/observe/terminal/progress_line.h"

namespace lockstep {
namespace {

using FoundJson = nlohmann::ordered_json;

const BatchAccuracy* accuracy_of(const std::vector<BatchAccuracy>& accuracies, std::int64_t batch) {
  const auto found = std::ranges::find(accuracies, batch, &BatchAccuracy::batch);
  return found == accuracies.end() ? nullptr : &*found;
}

std::string mark_of(const FoundBatch& found, std::int64_t batch) {
  if (batch == found.recommended.batch) return "recommended";
  return batch == found.configured.batch && !found.configured.automatic ? "as configured" : "";
}

std::string row(const BatchFigure& figure, double peak) {
  if (!figure.measured()) return fmt::format("{:>7}  {}", figure.batch, figure.problem);
  return fmt::format("{:>7}  {:>10}  {:>6.1f} %  {:>4.0f} %  {:>9.2f}  {:>10.2f}  {:>10}", figure.batch,
                     rounded_rate(figure.samples_per_second), 100 * figure.samples_per_second / peak,
                     100 * figure.busy, 1e3 * figure.step_seconds, 1e3 * figure.exposed_seconds,
                     in_units(figure.bytes));
}

std::string accuracy_columns(const BatchAccuracy& accuracy) {
  if (!accuracy.problem.empty()) return "  not trained: " + accuracy.problem;
  return fmt::format("  {:>8.2f} %  {:>8.2f} %", 100 * accuracy.of_epochs, 100 * accuracy.of_steps);
}

FoundJson as_json(const BatchFigure& figure) {
  FoundJson json = {{"batch", figure.batch}};
  if (!figure.measured()) {
    json["problem"] = figure.problem;
    return json;
  }
  json["samples_per_second"] = figure.samples_per_second;
  json["busy"] = figure.busy;
  json["step_seconds"] = figure.step_seconds;
  json["exposed_communication_seconds"] = figure.exposed_seconds;
  json["device_bytes"] = figure.bytes;
  return json;
}

FoundJson as_json(const BatchAccuracy& accuracy) {
  FoundJson json = {{"learning_rate", accuracy.learning_rate}};
  if (!accuracy.problem.empty()) {
    json["problem"] = accuracy.problem;
    return json;
  }
  json["equal_epochs"] = {{"epochs", accuracy.epochs},
                          {"steps", accuracy.steps_of_epochs},
                          {"test_accuracy", accuracy.of_epochs}};
  json["equal_steps"] = {{"steps", accuracy.steps}, {"test_accuracy", accuracy.of_steps}};
  return json;
}

FoundJson finite_or_null(double value) { return std::isfinite(value) ? FoundJson(value) : FoundJson(); }

LineChart chart_of(const std::string& title, const std::string& unit, std::vector<ChartSeries> series) {
  return {.title = title,
          .x_title = "train.batch: samples per rank and micro-batch",
          .y_title = unit,
          .log_x = true,
          .series = std::move(series),
          .height = 300};
}

}  // namespace

std::string batch_line(const BatchFigure& figure) {
  if (!figure.measured()) return fmt::format("batch {}: {}", figure.batch, figure.problem);
  return fmt::format("batch {}  {}  busy {:.0f} %  {}", figure.batch,
                     per_second(figure.samples_per_second, "samples"), 100 * figure.busy,
                     in_units(figure.bytes));
}

std::string batch_table(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies) {
  std::string text = fmt::format("{:>7}  {:>10}  {:>8}  {:>6}  {:>9}  {:>10}  {:>10}{}\n", "batch",
                                 "samples/s", "of best", "busy", "step ms", "exposed ms", "memory",
                                 accuracies.empty() ? "" : "  same epochs  same steps");
  const BatchFigure* best = fastest_batch(found.figures);
  for (const BatchFigure& figure : found.figures) {
    text += row(figure, best == nullptr ? 1 : best->samples_per_second);
    if (const BatchAccuracy* accuracy = accuracy_of(accuracies, figure.batch))
      text += accuracy_columns(*accuracy);
    const std::string mark = mark_of(found, figure.batch);
    text += mark.empty() ? "\n" : "  " + mark + '\n';
  }
  return text;
}

std::vector<std::string> recommended_training(const FoundBatch& found, const std::string& config,
                                              const std::vector<std::string>& overrides) {
  if (!found.recommended.changes) return {};
  std::vector<std::string> settings = {fmt::format("train.batch={}", found.recommended.batch)};
  if (found.recommended.accumulation != found.configured.accumulation)
    settings.push_back(fmt::format("train.accumulation={}", found.recommended.accumulation));
  // Set even if they do not change: load_config may have chosen them for the configured batch.
  settings.push_back(fmt::format("optimizer.learning_rate={}", found.recommended.learning_rate));
  settings.push_back(fmt::format("schedule.warmup_epochs={}", found.recommended.warmup_epochs));
  const auto key_of = [](const std::string& setting) { return setting.substr(0, setting.find('=')); };
  std::vector<std::string> words = {"train", config};
  for (const std::string& given : overrides)
    if (std::ranges::find(settings, key_of(given), key_of) == settings.end())
      words.insert(words.end(), {"--set", given});
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  return words;
}

std::vector<std::string> batch_verdict(const FoundBatch& found) {
  const BatchRecommendation& best = found.recommended;
  std::vector<std::string> lines;
  lines.push_back(
      found.most_run == found.most
          ? fmt::format("The largest batch that fits by the memory plan is {}; a run confirmed it.",
                        found.most)
          : fmt::format("The largest batch that fits by the memory plan is {}; the largest that was run is "
                        "{}. Increase --seconds to run larger ones.",
                        found.most, found.most_run));
  if (!found.most_problem.empty()) lines.push_back("A larger batch did not fit: " + found.most_problem);
  if (found.multiple > 1)
    lines.push_back(fmt::format(
        "Other batches from {0} up are multiples of {0}, which use all lanes of the kernels{1}.",
        found.multiple,
        found.configured.batch % found.multiple == 0 || found.configured.batch < found.multiple
            ? ""
            : fmt::format("; the {} batch {} is not", found.configured.automatic ? "first" : "configured",
                          found.configured.batch)));
  const std::string noise =
      describe_noise(found.noise.critical_batch(), best.global_batch, found.figures, found.configured);
  if (!noise.empty()) lines.push_back("The " + noise + ".");
  if (!best.changes) {
    lines.push_back(fmt::format("Keep batch {}: {}.", best.batch, best.reason));
    return lines;
  }
  lines.push_back(
      fmt::format("Recommended: batch {}, {}; {} samples per step, learning rate {} ({} rule{}).", best.batch,
                  best.reason, best.global_batch, best.learning_rate, word_of(found.configured.scaling),
                  found.configured.is_held_back(best.global_batch) ? ", limited by gradient noise" : ""));
  if (found.configured.figure_in(found.figures) != nullptr)
    lines.push_back(
        fmt::format("This gives {:.2f} times the samples/s of the given configuration.", found.ratio));
  return lines;
}

std::string batch_json(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies) {
  FoundJson batches = FoundJson::array();
  for (const BatchFigure& figure : found.figures) {
    FoundJson json = as_json(figure);
    if (const BatchAccuracy* accuracy = accuracy_of(accuracies, figure.batch))
      json["accuracy"] = as_json(*accuracy);
    batches.push_back(std::move(json));
  }
  const BatchRecommendation& best = found.recommended;
  const bool automatic = found.configured.automatic;
  const FoundJson json = {
      {"ranks", found.configured.ranks},
      {"configured",
       {{"batch", automatic ? FoundJson("auto") : FoundJson(found.configured.batch)},
        {"accumulation", found.configured.accumulation},
        {"global_batch", automatic ? FoundJson() : FoundJson(found.configured.global_batch())},
        {"learning_rate", found.configured.learning_rate}}},
      {"multiple", found.multiple},
      {"batches", std::move(batches)},
      {"largest", {{"batch", found.most}, {"run", found.most_run}, {"problem", found.most_problem}}},
      {"gradient_noise",
       {{"critical_batch", finite_or_null(found.noise.critical_batch())},
        {"gradient_square", found.noise.gradient_square()},
        {"variance", found.noise.variance()},
        {"samples", found.noise.samples()}}},
      {"recommended",
       {{"batch", best.batch},
        {"accumulation", best.accumulation},
        {"global_batch", best.global_batch},
        {"learning_rate", best.learning_rate},
        {"warmup_epochs", best.warmup_epochs},
        {"changes", best.changes},
        {"reason", best.reason},
        {"samples_per_second_ratio", found.ratio}}},
      {"seconds", found.seconds}};
  return dumped(json, 1) + '\n';
}

std::string batch_charts(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies,
                         const std::string& network) {
  ChartSeries rate{.name = "all ranks"}, busy{.name = "mean over ranks"},
      memory{.name = "per rank, by the memory plan"};
  for (const BatchFigure& figure : found.figures) {
    if (!figure.measured()) continue;
    const auto batch = static_cast<double>(figure.batch);
    rate.points.push_back({batch, figure.samples_per_second});
    busy.points.push_back({batch, 100 * figure.busy});
    memory.points.push_back({batch, in_mib(figure.bytes)});
  }
  std::vector<LineChart> charts = {chart_of(network + ": samples per second", "samples/s", {rate}),
                                   chart_of("Busy", "% of the time", {busy}),
                                   chart_of("Device memory", "MiB", {memory})};
  ChartSeries epochs{.name = "equal epochs"}, steps{.name = "equal steps"};
  for (const BatchAccuracy& each : accuracies) {
    if (!each.problem.empty()) continue;
    epochs.points.push_back({static_cast<double>(each.batch), 100 * each.of_epochs});
    steps.points.push_back({static_cast<double>(each.batch), 100 * each.of_steps});
  }
  if (!epochs.points.empty()) charts.push_back(chart_of("Test accuracy", "%", {epochs, steps}));
  return to_svg(charts);
}

}  // namespace lockstep
