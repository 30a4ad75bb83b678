// SPDX-License-Identifier: Apache-2.0
//
// Sections that are charts.
#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "launch/program/html_report/chart.h"
#include "launch/program/html_report/run_sections.h"
#include "launch/program/html_report/run_summary.h"
#include "launch/program/html_report/style.h"

namespace lockstep {
namespace {

template <typename Line>
std::vector<ChartPoint> points_of(const std::vector<Line>& lines, double Line::*x, double Line::*y,
                                  double factor = 1) {
  std::vector<ChartPoint> points;
  points.reserve(lines.size());
  for (const Line& line : lines) points.push_back({.x = line.*x, .y = line.*y * factor});
  return points;
}

// The values of a chart: from steps.jsonl, or else from metrics.jsonl (epochs).
struct TrainingNumber {
  const char* title;
  const char* unit;
  double StepPoint::*of_steps = nullptr;
  double EpochLine::*of_epochs = nullptr;
  double EvaluationPoint::*of_evaluations = nullptr;
  double factor = 1;
  bool from_zero = true;
  double top = 0;
};

constexpr TrainingNumber kSpeedNumbers[] = {{.title = "Busy",
                                             .unit = "%",
                                             .of_steps = &StepPoint::busy,
                                             .of_epochs = &EpochLine::busy,
                                             .factor = 100,
                                             .top = 100},
                                            {.title = "Samples per second",
                                             .unit = "samples/s",
                                             .of_steps = &StepPoint::samples_per_second,
                                             .of_epochs = &EpochLine::samples_per_second},
                                            {.title = "Peak",
                                             .unit = "%",
                                             .of_steps = &StepPoint::peak,
                                             .of_epochs = &EpochLine::peak,
                                             .factor = 100},
                                            {.title = "Exposed communication",
                                             .unit = "% of the time",
                                             .of_steps = &StepPoint::exposed,
                                             .of_epochs = &EpochLine::exposed,
                                             .factor = 100}};
constexpr TrainingNumber kLearningNumbers[] = {
    {.title = "Training loss",
     .unit = "nats",
     .of_steps = &StepPoint::loss,
     .of_epochs = &EpochLine::train_loss,
     .from_zero = false},
    {.title = "Test loss", .unit = "nats", .of_evaluations = &EvaluationPoint::test_loss, .from_zero = false},
    {.title = "Test accuracy",
     .unit = "%",
     .of_evaluations = &EvaluationPoint::test_accuracy,
     .factor = 100,
     .from_zero = false},
    {.title = "Top-5 accuracy",
     .unit = "%",
     .of_evaluations = &EvaluationPoint::top5,
     .factor = 100,
     .from_zero = false},
    {.title = "F1, mean over classes",
     .unit = "%",
     .of_evaluations = &EvaluationPoint::f1_macro,
     .factor = 100,
     .from_zero = false},
    {.title = "Learning rate",
     .unit = "",
     .of_steps = &StepPoint::learning_rate,
     .of_epochs = &EpochLine::learning_rate},
    {.title = "Gradient norm", .unit = "L2", .of_steps = &StepPoint::gradient_norm},
    {.title = "Loss scale",
     .unit = "",
     .of_steps = &StepPoint::loss_scale,
     .of_epochs = &EpochLine::loss_scale}};

bool tells_something(const std::vector<ChartPoint>& points) {
  return std::ranges::any_of(points, [](const ChartPoint& point) { return std::isfinite(point.y); });
}

std::vector<ChartPoint> training_points(const RunFolder& run, const TrainingNumber& number) {
  if (number.of_evaluations != nullptr)
    return points_of(evaluation_points(run), &EvaluationPoint::step, number.of_evaluations, number.factor);
  std::vector<ChartPoint> points;
  if (number.of_steps != nullptr)
    points = points_of(run.steps, &StepPoint::step, number.of_steps, number.factor);
  if (!tells_something(points) && number.of_epochs != nullptr)
    points = points_of(run.epochs, &EpochLine::steps, number.of_epochs, number.factor);
  return points;
}

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

std::string busy_figure(const RunFolder& run) {
  const TrainingNumber &busy = kSpeedNumbers[0], &peak = kSpeedNumbers[2];
  return to_figure(
      {.title = "Busy and peak",
       .unit = "%",
       .top = 100,
       .curves = {{"busy", training_points(run, busy), 0}, {"peak", training_points(run, peak), 1}}});
}

std::string loss_figure(const RunFolder& run) {
  return to_figure(
      {.title = "Loss",
       .unit = "nats",
       .from_zero = false,
       .curves = {
           {"training, by step", points_of(run.steps, &StepPoint::step, &StepPoint::loss), 7},
           {"training, by epoch", points_of(run.epochs, &EpochLine::steps, &EpochLine::train_loss), 0},
           {"test", points_of(evaluation_points(run), &EvaluationPoint::step, &EvaluationPoint::test_loss),
            1}}});
}

// A chart for each value, with a curve for each run.
std::string charts_of(const NamedRuns& named, std::span<const TrainingNumber> numbers) {
  const bool alone = named.runs.size() == 1;
  std::string html;
  for (const TrainingNumber& number : numbers) {
    const bool of_loss = number.of_epochs == &EpochLine::train_loss,
               of_busy = number.of_epochs == &EpochLine::busy;
    if (alone && of_loss) html += loss_figure(named.runs[0]);
    if (alone && of_busy) html += busy_figure(named.runs[0]);
    const bool drawn_with_it =
        number.of_evaluations == &EvaluationPoint::test_loss || number.of_epochs == &EpochLine::peak;
    const bool drawn_elsewhere = number.of_epochs == &EpochLine::exposed;
    if (alone && (of_loss || of_busy || drawn_with_it || drawn_elsewhere)) continue;
    CurveChart chart{.title = number.title,
                     .unit = number.unit,
                     .from_zero = number.from_zero,
                     .top = number.top,
                     .legend = false};
    for (std::size_t i = 0; i < named.runs.size(); ++i) {
      chart.curves.push_back({.name = alone ? number.title : named.names[i],
                              .points = training_points(named.runs[i], number),
                              .color = i,
                              .dashed = i >= kCurveColors});
    }
    if (number.of_epochs == &EpochLine::loss_scale && never_moves(chart.curves)) continue;
    if (number.of_epochs == &EpochLine::exposed && are_zero(chart.curves)) continue;
    html += to_figure(chart);
  }
  return html;
}

bool is_memory(const MonitorSeries& series) {
  return series.unit.find("iB") != std::string::npos && series.unit.find("/s") == std::string::npos &&
         series.column.find("used") != std::string::npos;
}

// One column for all devices; used memory with the total.
std::string monitor_figure(const MonitorTable& file, const std::string& column) {
  CurveChart chart{.title = column, .x_title = "minutes"};
  for (const MonitorSeries& series : file.series) {
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
    const auto found = std::ranges::find(file.series, total, &MonitorSeries::column);
    if (found != file.series.end())
      chart.curves.push_back(
          {.name = "total", .points = found->points, .color = kCurveColors - 1, .dashed = true});
  }
  if (chart.unit == "%") chart.top = 100;
  return to_figure(chart);
}

// A figure for each wanted column.
std::string monitor_figures(const MonitorTable& file,
                            const std::function<bool(const MonitorSeries&)>& wanted) {
  std::string html;
  std::vector<std::string> drawn;
  for (const MonitorSeries& series : file.series) {
    if (!wanted(series) || std::ranges::find(drawn, series.column) != drawn.end()) continue;
    drawn.push_back(series.column);
    html += monitor_figure(file, series.column);
  }
  return html.empty() ? html : fmt::format("<div class=\"charts\">\n{}</div>\n", html);
}

}  // namespace

std::string speed_charts(const NamedRuns& named) { return charts_of(named, kSpeedNumbers); }
std::string learning_charts(const NamedRuns& named) { return charts_of(named, kLearningNumbers); }

std::string exposed_figure(const RunFolder& run) {
  const TrainingNumber& exposed = kSpeedNumbers[3];
  return to_figure({.title = exposed.title,
                    .unit = exposed.unit,
                    .curves = {{"exposed", training_points(run, exposed), 1}}});
}

std::string monitor_section(const RunFolder& run) {
  if (run.monitor.series.empty())
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
