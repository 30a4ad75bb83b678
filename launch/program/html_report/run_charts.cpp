// SPDX-License-Identifier: Apache-2.0
//
// Sections that are charts.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "launch/program/html_report/charts/chart.h"
#include "launch/program/html_report/files/run_summary.h"
#include "launch/program/html_report/run_sections.h"
#include "launch/program/html_report/style.h"

namespace lockstep {
namespace {

// Charts for a single run; nothing where another figure has the curve.
std::string busy_figure(const RunFolder& run);
std::string loss_figure(const RunFolder& run);
std::string no_figure(const RunFolder&) { return {}; }

// A constant loss scale means that loss scaling is not used.
bool never_moves(const std::vector<Curve>& curves) {
  return std::ranges::all_of(curves, [](const Curve& curve) {
    return std::ranges::all_of(curve.points,
                               [&](const ChartPoint& point) { return point.y == curve.points[0].y; });
  });
}

// A single rank has no exposed communication.
bool are_zero(const std::vector<Curve>& curves) {
  return std::ranges::all_of(curves, [](const Curve& curve) {
    return std::ranges::all_of(curve.points, [](const ChartPoint& point) { return point.y == 0; });
  });
}

template <auto Member, typename Line>
double member_of(const Line& line) {
  return line.*Member;
}
template <typename Line>
double peak_of(const Line& line) {
  return line.peak.value_or(kNotTold);
}
// Communication not overlapped with compute, as a share of the account.
template <typename Line>
double exposed_share(const Line& line) {
  const double total = line.account.total();
  return total > 0 ? line.account[Phase::exposed_communication] / total : kNotTold;
}
template <auto Number>
double in_evaluation(const EvaluationRecord& record) {
  return record.evaluation.*Number;
}
template <std::optional<double> EvaluationMetrics::*Metric>
double metric_in(const EvaluationRecord& record) {
  return metric_of(record.evaluation, Metric);
}

// The values of a chart: from steps.jsonl, or else from metrics.jsonl (epochs).
struct TrainingNumber {
  const char* title;
  const char* unit = nullptr;  // null: loss_unit()
  double (*of_steps)(const StepLine&) = nullptr;
  double (*of_epochs)(const EpochReport&) = nullptr;
  double (*of_evaluations)(const EvaluationRecord&) = nullptr;
  double factor = 1;
  bool from_zero = true;
  double top = 0;
  std::string (*alone)(const RunFolder&) = nullptr;  // the figure for a single run; null: as for several
  bool (*omitted_if)(const std::vector<Curve>&) = nullptr;
};

constexpr TrainingNumber share_in_evaluations(const char* title, double (*share)(const EvaluationRecord&)) {
  return {.title = title, .unit = "%", .of_evaluations = share, .factor = 100, .from_zero = false};
}

constexpr TrainingNumber kBusy = {.title = "Busy",
                                  .unit = "%",
                                  .of_steps = member_of<&StepLine::busy>,
                                  .of_epochs = member_of<&EpochReport::busy>,
                                  .factor = 100,
                                  .top = 100,
                                  .alone = busy_figure};
constexpr TrainingNumber kPeak = {.title = "Peak",
                                  .unit = "%",
                                  .of_steps = peak_of,
                                  .of_epochs = peak_of,
                                  .factor = 100,
                                  .alone = no_figure};
constexpr TrainingNumber kExposed = {.title = "Exposed communication",
                                     .unit = "% of the time",
                                     .of_steps = exposed_share,
                                     .of_epochs = exposed_share,
                                     .factor = 100,
                                     .alone = no_figure,
                                     .omitted_if = are_zero};
constexpr TrainingNumber kSpeedNumbers[] = {kBusy,
                                            {.title = "Samples per second",
                                             .unit = "samples/s",
                                             .of_steps = member_of<&StepLine::samples_per_second>,
                                             .of_epochs = member_of<&EpochReport::samples_per_second>},
                                            kPeak,
                                            kExposed};
constexpr TrainingNumber kLearningNumbers[] = {
    {.title = "Training loss",
     .of_steps = member_of<&StepLine::loss>,
     .of_epochs = member_of<&EpochReport::train_loss>,
     .from_zero = false,
     .alone = loss_figure},
    {.title = "Test loss",
     .of_evaluations = in_evaluation<&Evaluation::loss>,
     .from_zero = false,
     .alone = no_figure},
    share_in_evaluations("Test accuracy", in_evaluation<&Evaluation::accuracy>),
    share_in_evaluations("Top-5 accuracy", metric_in<&EvaluationMetrics::top5>),
    share_in_evaluations("F1, mean over classes", metric_in<&EvaluationMetrics::f1_macro>),
    share_in_evaluations("IoU, mean over classes", metric_in<&EvaluationMetrics::iou_mean>),
    {.title = "Learning rate",
     .unit = "",
     .of_steps = member_of<&StepLine::learning_rate>,
     .of_epochs = member_of<&EpochReport::learning_rate>},
    {.title = "Gradient norm", .unit = "L2", .of_steps = member_of<&StepLine::gradient_norm>},
    {.title = "Loss scale",
     .unit = "",
     .of_steps = member_of<&StepLine::loss_scale>,
     .of_epochs = member_of<&EpochReport::loss_scale>,
     .omitted_if = never_moves}};

template <typename Line>
std::vector<ChartPoint> points_of(const std::vector<Line>& lines, double (*number)(const Line&),
                                  double factor = 1) {
  std::vector<ChartPoint> points;
  points.reserve(lines.size());
  for (const Line& line : lines)
    points.push_back({.x = static_cast<double>(line.step), .y = number(line) * factor});
  return points;
}

bool tells_something(const std::vector<ChartPoint>& points) {
  return std::ranges::any_of(points, [](const ChartPoint& point) { return std::isfinite(point.y); });
}

std::vector<ChartPoint> training_points(const RunFolder& run, const TrainingNumber& number) {
  if (number.of_evaluations != nullptr)
    return points_of(evaluation_points(run), number.of_evaluations, number.factor);
  std::vector<ChartPoint> points;
  if (number.of_steps != nullptr) points = points_of(run.steps, number.of_steps, number.factor);
  if (!tells_something(points) && number.of_epochs != nullptr)
    points = points_of(run.epochs, number.of_epochs, number.factor);
  return points;
}

// Cross-entropies are in nats; another loss has no unit.
const char* loss_unit(std::span<const RunFolder> runs) {
  const auto is_cross_entropy = [](const RunFolder& run) {
    return fact_named(run.config, "model.loss").ends_with("cross_entropy");
  };
  return std::ranges::all_of(runs, is_cross_entropy) ? "nats" : "";
}

std::string busy_figure(const RunFolder& run) {
  return to_figure(
      {.title = "Busy and peak",
       .unit = "%",
       .top = 100,
       .curves = {{"busy", training_points(run, kBusy), 0}, {"peak", training_points(run, kPeak), 1}}});
}

std::string loss_figure(const RunFolder& run) {
  return to_figure(
      {.title = "Loss",
       .unit = loss_unit({&run, 1}),
       .from_zero = false,
       .curves = {
           {"training, by step", points_of(run.steps, member_of<&StepLine::loss, StepLine>), 7},
           {"training, by epoch", points_of(run.epochs, member_of<&EpochReport::train_loss, EpochReport>), 0},
           {"test", points_of(evaluation_points(run), in_evaluation<&Evaluation::loss>), 1}}});
}

// A chart for each value, with a curve for each run.
std::string charts_of(const NamedRuns& named, std::span<const TrainingNumber> numbers) {
  const bool alone = named.runs.size() == 1;
  std::string html;
  for (const TrainingNumber& number : numbers) {
    if (alone && number.alone != nullptr) {
      html += number.alone(named.runs[0]);
      continue;
    }
    CurveChart chart{.title = number.title,
                     .unit = number.unit != nullptr ? number.unit : loss_unit(named.runs),
                     .from_zero = number.from_zero,
                     .top = number.top,
                     .legend = false};
    for (std::size_t i = 0; i < named.runs.size(); ++i) {
      chart.curves.push_back({.name = alone ? number.title : named.names[i],
                              .points = training_points(named.runs[i], number),
                              .color = i,
                              .dashed = i >= kCurveColors});
    }
    if (number.omitted_if == nullptr || !number.omitted_if(chart.curves)) html += to_figure(chart);
  }
  return html;
}

bool is_memory(const MonitorSeries& series) {
  return series.unit.find("iB") != std::string::npos && series.unit.find("/s") == std::string::npos &&
         series.column.find("used") != std::string::npos;
}

// One column for all devices; used memory with the total.
std::string monitor_figure(const std::vector<MonitorSeries>& all, const std::string& column) {
  CurveChart chart{.title = column, .x_title = "minutes"};
  for (const MonitorSeries& series : all) {
    if (series.column != column) continue;
    const std::size_t color = chart.curves.size();
    chart.unit = series.unit;
    chart.curves.push_back({.name = series.device.empty() ? column : series.device,
                            .points = series.points,
                            .color = color,
                            .dashed = color >= kCurveColors});
  }
  if (const std::size_t at = column.find("used"); at != std::string::npos) {
    const std::string total = std::string(column).replace(at, 4, "total");
    const auto found = std::ranges::find(all, total, &MonitorSeries::column);
    if (found != all.end())
      chart.curves.push_back(
          {.name = "total", .points = found->points, .color = kCurveColors - 1, .dashed = true});
  }
  if (chart.unit == "%") chart.top = 100;
  return to_figure(chart);
}

// A figure for each wanted column.
std::string monitor_figures(const std::vector<MonitorSeries>& all,
                            const std::function<bool(const MonitorSeries&)>& wanted) {
  std::string html;
  std::vector<std::string> drawn;
  for (const MonitorSeries& series : all) {
    if (!wanted(series) || std::ranges::find(drawn, series.column) != drawn.end()) continue;
    drawn.push_back(series.column);
    html += monitor_figure(all, series.column);
  }
  return html.empty() ? html : fmt::format("<div class=\"charts\">\n{}</div>\n", html);
}

}  // namespace

std::string speed_charts(const NamedRuns& named) { return charts_of(named, kSpeedNumbers); }
std::string learning_charts(const NamedRuns& named) { return charts_of(named, kLearningNumbers); }

std::string exposed_figure(const RunFolder& run) {
  return to_figure({.title = kExposed.title,
                    .unit = kExposed.unit,
                    .curves = {{"exposed", training_points(run, kExposed), 1}}});
}

std::string monitor_section(const RunFolder& run) {
  if (run.monitor.empty())
    return "<p class=\"soft\">No use of devices and hosts was recorded (monitor.csv; see "
           "run.monitor_seconds).</p>\n";
  const auto is_share = [](const MonitorSeries& series) { return series.unit == "%"; };
  const auto leads = [&](const MonitorSeries& series) { return is_share(series) || is_memory(series); };
  const auto is_total = [](const MonitorSeries& series) {
    return series.column.find("total") != std::string::npos;
  };
  const std::string others = monitor_figures(
      run.monitor, [&](const MonitorSeries& series) { return !leads(series) && !is_total(series); });
  return monitor_figures(run.monitor, leads) +
         (others.empty()
              ? ""
              : fmt::format("<details><summary>Other columns of monitor.csv</summary>\n{}</details>\n",
                            others));
}

}  // namespace lockstep
