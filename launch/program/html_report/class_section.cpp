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
                            number_cell("share of the label")},
                  .rows = {}};
  for (const Mistake& each : mistakes) {
    const double share = each.count / samples[each.label];
    table.rows.push_back({text_cell(class_name(run, each.label)),
                          text_cell(class_name(run, each.taken)),
                          number_cell(number_text(each.count)),
                          {.html = percent_text(share) + html_bar(share, "s1"), .number = true}});
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

// The end of a heading.
std::string with_samples(const EvaluationMetrics& metrics) {
  return metrics.samples_by_class.empty() ? "" : " with samples";
}

// Above kMostClasses classes with samples, those with the lowest F1.
std::string scores_table(const RunFolder& run, const EvaluationMetrics& metrics) {
  const std::vector<ClassScore>& scores = metrics.by_class;
  std::vector<std::size_t> order = labels_with_samples(metrics, scores.size());
  const bool all = order.size() <= kMostClasses;
  if (!all) {
    std::ranges::stable_sort(order, {}, [&](std::size_t label) { return scores[label].f1; });
    order.resize(kMostClasses);
  }
  HtmlTable table{
      .heads = {text_cell("class"), number_cell("F1"), number_cell("precision"), number_cell("recall")},
      .rows = {}};
  for (const std::size_t label : order)
    table.rows.push_back(
        {text_cell(class_name(run, label)),
         {.html = percent_text(scores[label].f1) + html_bar(scores[label].f1, "s2"), .number = true},
         number_cell(percent_text(scores[label].precision)),
         number_cell(percent_text(scores[label].recall))});
  return titled(all ? "Each class" + with_samples(metrics)
                    : fmt::format("The {} classes with the lowest F1", kMostClasses),
                to_html(table));
}

// Above kMostClasses classes with samples, those with the lowest IoU.
std::string iou_table(const RunFolder& run, const EvaluationMetrics& metrics) {
  const std::vector<double>& iou = metrics.iou_by_class;
  std::vector<std::size_t> order = labels_with_samples(metrics, iou.size());
  const bool all = order.size() <= kMostClasses;
  if (!all) {
    std::ranges::stable_sort(order, {}, [&](std::size_t label) { return iou[label]; });
    order.resize(kMostClasses);
  }
  HtmlTable table{.heads = {text_cell("class"), number_cell("IoU")}, .rows = {}};
  for (const std::size_t label : order)
    table.rows.push_back({text_cell(class_name(run, label)),
                          {.html = percent_text(iou[label]) + html_bar(iou[label], "s2"), .number = true}});
  return titled(all ? "IoU of each class" + with_samples(metrics)
                    : fmt::format("The {} classes with the lowest IoU", kMostClasses),
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
  if (!metrics.by_class.empty()) html += scores_table(run, metrics);
  if (!metrics.iou_by_class.empty()) html += iou_table(run, metrics);
  if (html.empty()) return {};
  return fmt::format(
      "<p class=\"soft\">Results of the last evaluation{}.</p>\n<div class=\"pair\">\n{}</div>\n",
      confusion.empty() ? "" : "; wrong predictions are orange", html);
}

}  // namespace lockstep
