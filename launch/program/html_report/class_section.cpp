// SPDX-License-Identifier: Apache-2.0
//
// Class metrics of the last evaluation (run.metrics): the confusion matrix, and scores of each class.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "launch/program/html_report/charts/heat_table.h"
#include "launch/program/html_report/html.h"
#include "launch/program/html_report/run_sections.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostWithNumbers = 25;  // classes up to which the matrix shows numbers
constexpr std::size_t kMostMistakes = 10;     // rows
constexpr std::size_t kMostClasses = 100;     // rows

std::string titled(const std::string& title, const std::string& html) {
  return fmt::format("<div><h3>{}</h3>\n<div class=\"panel\">{}</div></div>\n", title, html);
}

std::string class_name(const RunFolder& run, std::size_t label) {
  return label < run.class_names.size() ? run.class_names[label] : fmt::format("{}", label);
}

std::vector<std::vector<double>> confusion_rows(const EvaluationMetrics& metrics) {
  std::vector<std::vector<double>> rows;
  for (auto row = metrics.confusion.begin(); row != metrics.confusion.end(); row += metrics.classes)
    rows.emplace_back(row, row + metrics.classes);
  return rows;
}

std::vector<double> row_sums(const std::vector<std::vector<double>>& confusion) {
  std::vector<double> sums;
  for (const std::vector<double>& row : confusion)
    sums.push_back(std::accumulate(row.begin(), row.end(), 0.0));
  return sums;
}

// Rows are labels, columns predictions.
std::string confusion_table(const RunFolder& run, const std::vector<std::vector<double>>& confusion) {
  const std::vector<double> samples = row_sums(confusion);
  const bool small = confusion.size() > kMostWithNumbers;
  HeatTable table{.corner = "label, by prediction", .small = small};
  for (std::size_t label = 0; label < confusion.size(); ++label) {
    table.row_names.push_back(class_name(run, label));
    table.column_names.push_back(small ? "" : class_name(run, label));
    std::vector<HeatCell>& row = table.rows.emplace_back();
    for (std::size_t taken = 0; taken < confusion[label].size(); ++taken) {
      const double count = confusion[label][taken];
      const double share = count / samples[label];
      HeatCell cell{.shade = label == taken ? share : std::sqrt(share),  // makes rare mistakes visible
                    .stands_out = label != taken};
      if (!small) cell.text = number_text(count);
      if (count > 0)
        cell.title = fmt::format("{} predicted as {}: {} of {} samples, {}", class_name(run, label),
                                 class_name(run, taken), number_text(count), number_text(samples[label]),
                                 percent_text(share));
      row.push_back(std::move(cell));
    }
  }
  return to_html(table);
}

struct Mistake {
  std::size_t label = 0, taken = 0;
  double count = 0;
};

std::string mistakes_table(const RunFolder& run, const std::vector<std::vector<double>>& confusion) {
  std::vector<Mistake> mistakes;
  for (std::size_t label = 0; label < confusion.size(); ++label)
    for (std::size_t taken = 0; taken < confusion[label].size(); ++taken)
      if (label != taken && confusion[label][taken] > 0)
        mistakes.push_back({.label = label, .taken = taken, .count = confusion[label][taken]});
  if (mistakes.empty()) return {};
  std::ranges::stable_sort(mistakes, std::greater<>(), &Mistake::count);
  mistakes.resize(std::min(mistakes.size(), kMostMistakes));
  const std::vector<double> samples = row_sums(confusion);
  HtmlTable table{.heads = {text_cell("label"), text_cell("prediction"), number_cell("samples"),
                            number_cell("share of the label")}};
  for (const Mistake& each : mistakes) {
    const double share = each.count / samples[each.label];
    table.rows.push_back({text_cell(class_name(run, each.label)), text_cell(class_name(run, each.taken)),
                          number_cell(number_text(each.count)),
                          barred_cell(percent_text(share), share, "s1")});
  }
  return titled("Most frequent mistakes", to_html(table));
}

// The labels of the classes that have samples; all labels if the run does not count the samples.
std::vector<std::size_t> labels_with_samples(const EvaluationMetrics& metrics, std::size_t classes) {
  std::vector<std::size_t> labels(classes);
  std::iota(labels.begin(), labels.end(), std::size_t{0});
  if (metrics.samples_by_class.size() == classes)
    std::erase_if(labels, [&](std::size_t label) { return metrics.samples_by_class[label] == 0; });
  return labels;
}

// A score of each class, from 0 to 1.
struct ScoreColumn {
  std::string name;
  std::vector<double> scores;  // by label
};

ScoreColumn score_column(const std::string& name, const std::vector<ClassScore>& classes,
                         double ClassScore::*score) {
  ScoreColumn column{.name = name, .scores = {}};
  for (const ClassScore& each : classes) column.scores.push_back(each.*score);
  return column;
}

// The first score has bars. Above kMostClasses classes with samples, shows those where it is lowest.
// title: the heading if the table has all classes.
std::string scores_table(const RunFolder& run, const EvaluationMetrics& metrics, const std::string& title,
                         const std::vector<ScoreColumn>& columns) {
  const ScoreColumn& first = columns.front();
  std::vector<std::size_t> order = labels_with_samples(metrics, first.scores.size());
  const bool all = order.size() <= kMostClasses;
  if (!all) {
    std::ranges::stable_sort(order, {}, [&](std::size_t label) { return first.scores[label]; });
    order.resize(kMostClasses);
  }
  HtmlTable table{.heads = {text_cell("class")}};
  for (const ScoreColumn& each : columns) table.heads.push_back(number_cell(each.name));
  for (const std::size_t label : order) {
    std::vector<HtmlCell>& row = table.rows.emplace_back();
    row.push_back(text_cell(class_name(run, label)));
    for (const ScoreColumn& each : columns) row.push_back(number_cell(percent_text(each.scores[label])));
    row[1] = barred_cell(row[1].html, first.scores[label], "s2");
  }
  return titled(all ? title + (metrics.samples_by_class.empty() ? "" : " with samples")
                    : fmt::format("The {} classes with the lowest {}", kMostClasses, first.name),
                to_html(table));
}

}  // namespace

std::string class_section(const RunFolder& run) {
  const auto last = std::find_if(run.epochs.rbegin(), run.epochs.rend(),
                                 [](const EpochReport& epoch) { return epoch.evaluation.has_value(); });
  if (last == run.epochs.rend() || !last->evaluation->metrics) return {};
  const EvaluationMetrics& metrics = *last->evaluation->metrics;
  const std::vector<std::vector<double>> confusion = confusion_rows(metrics);
  std::string html;
  if (!confusion.empty())
    html = titled("Labels by prediction", confusion_table(run, confusion)) + mistakes_table(run, confusion);
  if (const std::vector<ClassScore>& classes = metrics.by_class; !classes.empty())
    html += scores_table(run, metrics, "Each class",
                         {score_column("F1", classes, &ClassScore::f1),
                          score_column("precision", classes, &ClassScore::precision),
                          score_column("recall", classes, &ClassScore::recall)});
  if (!metrics.iou_by_class.empty())
    html += scores_table(run, metrics, "IoU of each class",
                         {ScoreColumn{.name = "IoU", .scores = metrics.iou_by_class}});
  if (html.empty()) return {};
  return fmt::format(
      "<p class=\"soft\">Results of the last evaluation{}.</p>\n<div class=\"pair\">\n{}</div>\n",
      confusion.empty() ? "" : "; wrong predictions are orange", html);
}

}  // namespace lockstep
