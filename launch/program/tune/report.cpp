// SPDX-License-Identifier: Apache-2.0
#include "launch/program/tune/report.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text/json_text.h"
#include "core/text/text.h"
#include "launch/observe/charts/svg_chart.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/config/toml_text.h"
#include "launch/program/tune/dimensions.h"
#include "launch/train/quantile.h"

namespace lockstep {
namespace {

using Evidence = nlohmann::ordered_json;

// Medians over the blocks, in milliseconds.
double median_ms(const std::vector<BenchBlock>& blocks, double BenchBlock::*part) {
  std::vector<double> values;
  for (const BenchBlock& block : blocks) values.push_back(1e3 * block.*part);
  return median_of(values);
}
double step_ms(const std::vector<BenchBlock>& blocks) { return median_ms(blocks, &BenchBlock::step_seconds); }
double exposed_ms(const std::vector<BenchBlock>& blocks) {
  return median_ms(blocks, &BenchBlock::exposed_seconds);
}

std::string table_row(const std::vector<BenchBlock>& blocks, const std::string& ratio,
                      const TuneFacts& facts) {
  const double step = step_ms(blocks);
  return fmt::format("{:>9.2f}  {:>10.2f}  {:>9}  {:<25}", step, exposed_ms(blocks),
                     rounded_rate(static_cast<double>(facts.global_batch) / step * 1e3), ratio);
}

Evidence as_evidence(const std::vector<BenchBlock>& blocks) {
  Evidence list = Evidence::array();
  for (const BenchBlock& block : blocks)
    list.push_back({{"step_ms", 1e3 * block.step_seconds}, {"exposed_ms", 1e3 * block.exposed_seconds}});
  return list;
}

Evidence as_evidence(const TuneFigure& figure) {
  return {{"ratio", figure.ratio}, {"low", figure.low}, {"high", figure.high}, {"pairs", figure.pairs}};
}

Evidence as_evidence(const TuneCandidate& candidate) {
  Evidence json = {{"settings", candidate.settings}, {"dimension", candidate.stage}};
  if (!candidate.problem.empty()) json["problem"] = candidate.problem;
  json["figure"] = candidate.ratios.empty() ? Evidence() : as_evidence(candidate.figure());
  json["ratios"] = candidate.ratios;
  json["blocks"] = as_evidence(candidate.blocks);
  return json;
}

// The measured candidate with the winner's value of the key and the fewest other settings; null: none.
const TuneCandidate* evidence_for(const std::string& key, const TuneOutcome& outcome) {
  const TuneCandidate* found = nullptr;
  for (const TuneCandidate& candidate : outcome.candidates) {
    const auto value = candidate.settings.find(key);
    if (value == candidate.settings.end() || value->second != outcome.winner.at(key)) continue;
    if (candidate.ratios.empty()) continue;
    if (found == nullptr || candidate.settings.size() < found->settings.size()) found = &candidate;
  }
  return found;
}

std::string comment_for(const std::string& key, const TuneOutcome& outcome) {
  const TuneCandidate* candidate = evidence_for(key, outcome);
  if (candidate == nullptr) return {};
  const TuneFigure figure = candidate->figure();
  std::string with;
  for (const auto& [other, value] : candidate->settings)
    if (other != key) with += fmt::format("{}{}={}", with.empty() ? ", with " : ", ", other, value);
  return fmt::format("# {} of the default's samples/s over {}{}\n", describe(figure),
                     counted(figure.pairs, "pair"), with);
}

}  // namespace

std::string visit_line(const TuneSettings& settings, const TuneFigure* figure, const std::string& problem) {
  if (!problem.empty()) return fmt::format("{}: cannot run: {}", describe(settings), problem);
  if (figure == nullptr) return describe(settings);
  return fmt::format("{}: {} in {}", describe(settings), describe(*figure), counted(figure->pairs, "pair"));
}

std::string tune_table(const TuneOutcome& outcome, const TuneFacts& facts, const Terminal& terminal) {
  std::string text = fmt::format("{:>9}  {:>10}  {:>9}  {:<25}{}\n", "step ms", "exposed ms", "samples/s",
                                 "speedup (interval)", "settings");
  const auto add = [&](const std::string& start, const std::string& rest) {
    text += beside(start, rest, terminal) + '\n';
  };
  add(table_row(outcome.default_blocks, "1", facts), describe(TuneSettings{}));
  std::vector<const TuneCandidate*> measured;
  for (const TuneCandidate& candidate : outcome.candidates)
    if (!candidate.ratios.empty()) measured.push_back(&candidate);
  std::ranges::stable_sort(measured, std::greater<>(),
                           [](const TuneCandidate* candidate) { return candidate->figure().ratio; });
  for (const TuneCandidate* candidate : measured)
    add(table_row(candidate->blocks, describe(candidate->figure()), facts), describe(candidate->settings));
  if (!outcome.confirmation.empty())
    add(table_row(outcome.confirmed_blocks, describe(figure_of(outcome.confirmation)), facts),
        "confirmation: " + describe(outcome.chosen));
  for (const TuneCandidate& candidate : outcome.candidates)
    if (candidate.ratios.empty())
      add("  not measured: ", candidate.problem.empty()
                                  ? describe(candidate.settings) + " (the budget was spent)"
                                  : visit_line(candidate.settings, nullptr, candidate.problem));
  return text;
}

std::string tuned_toml(const Config& winner, const TuneOutcome& outcome, const TuneFacts& facts,
                       const Registry& registry) {
  std::string text =
      fmt::format("{} on {} with {}, {} on {}.\n# {}.\n", kTunedMark, facts.date.substr(0, 10),
                  facts.processor, counted(facts.ranks, "rank"), counted(facts.nodes, "node"),
                  outcome.winner.empty() ? "The default configuration was kept: " + one_line(outcome.reason)
                                         : "All changes together: " + outcome.reason);
  std::istringstream lines(to_toml(winner, registry));
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
    const std::string key = section + '.' + line.substr(0, line.find(" = "));
    if (outcome.winner.contains(key)) text += comment_for(key, outcome);
    text += line + '\n';
  }
  return text;
}

std::string tune_evidence(const TuneOutcome& outcome, const TuneFacts& facts) {
  Evidence json = {
      {"command", facts.command},
      {"date", facts.date},
      {"program", facts.program},
      {"machine", {{"host", facts.host}, {"processor", facts.processor}, {"cores", facts.cores}}},
      {"ranks", facts.ranks},
      {"nodes", facts.nodes},
      {"device", facts.device},
      {"kernels", facts.backend},
      {"global_batch", facts.global_batch},
      {"steps_of_a_block", facts.block_steps},
      {"default",
       {{"step_ms", step_ms(outcome.default_blocks)},
        {"exposed_ms", exposed_ms(outcome.default_blocks)},
        {"blocks", as_evidence(outcome.default_blocks)}}}};
  json["candidates"] = Evidence::array();
  for (const TuneCandidate& candidate : outcome.candidates)
    json["candidates"].push_back(as_evidence(candidate));
  json["chosen"] = outcome.chosen;
  if (!outcome.confirmation.empty()) {
    json["confirmation"] = as_evidence(figure_of(outcome.confirmation));
    json["confirmation"]["ratios"] = outcome.confirmation;
    json["confirmation"]["blocks"] = as_evidence(outcome.confirmed_blocks);
  }
  json["winner"] = outcome.winner;
  json["reason"] = outcome.reason;
  return dumped(json, 2) + '\n';
}

std::optional<std::string> bucket_chart(const Config& config, const TuneOutcome& outcome,
                                        const TuneFacts& facts) {
  ChartSeries step{.name = "step", .points = {}}, exposed{.name = "exposed communication", .points = {}};
  const auto add = [&](const TuneSettings& settings, const std::vector<BenchBlock>& blocks) {
    const double middle = bucket_mib_of(config, settings)[1];
    step.points.push_back({middle, step_ms(blocks)});
    exposed.points.push_back({middle, exposed_ms(blocks)});
  };
  for (const TuneCandidate& candidate : outcome.candidates)
    if (candidate.stage == kBucketSizeStage && !candidate.blocks.empty())
      add(candidate.settings, candidate.blocks);
  if (step.points.empty()) return std::nullopt;
  add({}, outcome.default_blocks);
  return to_svg({.title = fmt::format("{}, {} on {}", config.model.name, counted(facts.ranks, "rank"),
                                      counted(facts.nodes, "node")),
                 .x_title = "capacity of the middle buckets, MiB",
                 .y_title = "time, ms",
                 .log_x = true,
                 .series = {step, exposed}});
}

}  // namespace lockstep
