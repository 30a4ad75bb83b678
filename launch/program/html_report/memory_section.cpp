// SPDX-License-Identifier: Apache-2.0
//
// Planned and measured memory of a rank.
#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "core/text/units.h"
#include "launch/observe/charts/markup.h"
#include "launch/program/html_report/charts/chart.h"
#include "launch/program/html_report/html.h"
#include "launch/program/html_report/run_sections.h"
#include "launch/program/html_report/style.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostCurves = 8;

struct PlannedPart {
  std::string name;
  double bytes = 0;
};

// planned_bytes.WHERE.PART of run.json.
std::vector<PlannedPart> planned_parts(const RunFolder& run, const std::string& where) {
  const std::string prefix = "planned_bytes." + where + '.';
  std::vector<PlannedPart> parts;
  for (const auto& [key, value] : run.machine) {
    double bytes = 0;
    if (!key.starts_with(prefix)) continue;
    if (std::from_chars(value.data(), value.data() + value.size(), bytes).ec != std::errc()) continue;
    parts.push_back({.name = key.substr(prefix.size()), .bytes = bytes});
  }
  std::ranges::stable_sort(parts, std::greater<>(), &PlannedPart::bytes);
  return parts;
}

double total_bytes(const std::vector<PlannedPart>& parts) {
  double total = 0;
  for (const PlannedPart& part : parts) total += part.bytes;
  return total;
}

// The maximum of any device, in bytes, from monitor.csv; NaN: unknown.
double used_bytes(const RunFolder& run) {
  double most = kNotTold;
  for (const MonitorSeries& series : run.monitor) {
    if (series.column != "memory.used" || series.unit != "MiB") continue;
    for (const ChartPoint& point : series.points) most = std::fmax(most, point.y * kMiB);
  }
  return most;
}

double most_resident(const RunFolder& run) {
  double most = kNotTold;
  for (const EpochReport& epoch : run.epochs)
    for (const std::int64_t bytes : epoch.resident_bytes_by_rank)
      most = std::fmax(most, static_cast<double>(bytes));
  return most;
}

std::string parts_table(const std::vector<PlannedPart>& parts, double had, const std::string& what_it_had) {
  HtmlTable table{.heads = {text_cell("part"), number_cell("planned")}};
  const double total = total_bytes(parts);
  for (const PlannedPart& part : parts)
    table.rows.push_back({text_cell(part.name),
                          barred_cell(bytes_text(part.bytes), part.bytes / std::fmax(total, had), "s0")});
  const auto whole = [&](const std::string& name, double bytes, const char* color) {
    table.rows.push_back(
        {{.html = fmt::format("<b>{}</b>", in_markup(name))},
         barred_cell(fmt::format("<b>{}</b>", bytes_text(bytes)), bytes / std::fmax(total, had), color)});
  };
  whole("planned total", total, "s0");
  if (std::isfinite(had)) whole(what_it_had, had, "s1");
  return fmt::format("<div class=\"panel\">{}</div>", to_html(table));
}

// Resident memory of the ranks' processes after each epoch, and the planned memory.
std::string resident_figure(const RunFolder& run, double planned) {
  CurveChart chart{.title = "Resident memory of the ranks\u2019 processes", .unit = "MiB"};
  for (const EpochReport& epoch : run.epochs) {
    const std::size_t ranks = std::min(epoch.resident_bytes_by_rank.size(), kMostCurves);
    for (std::size_t rank = chart.curves.size(); rank < ranks; ++rank)
      chart.curves.push_back({.name = fmt::format("rank {}", rank), .color = rank});
    for (std::size_t rank = 0; rank < ranks; ++rank)
      chart.curves[rank].points.push_back(
          {static_cast<double>(epoch.step), static_cast<double>(epoch.resident_bytes_by_rank[rank]) / kMiB});
  }
  if (chart.curves.empty() || !(planned > 0)) return {};
  chart.curves.push_back({.name = "planned",
                          .points = {{static_cast<double>(run.epochs.front().step), planned / kMiB},
                                     {static_cast<double>(run.epochs.back().step), planned / kMiB}},
                          .color = kCurveColors - 1,
                          .dashed = true});
  return to_figure(chart);
}

}  // namespace

std::string memory_section(const RunFolder& run) {
  std::string html;
  if (const auto parts = planned_parts(run, "device"); !parts.empty())
    html += fmt::format(
        "<div><h3>A rank\u2019s GPU</h3>\n{}</div>\n",
        parts_table(parts, used_bytes(run), "maximum in use, with libraries and other processes"));
  if (const auto parts = planned_parts(run, "host"); !parts.empty())
    html +=
        fmt::format("<div><h3>A rank\u2019s process</h3>\n{}</div>\n<div><h3>Over time</h3>\n{}</div>\n",
                    parts_table(parts, most_resident(run), "maximum resident, with program and libraries"),
                    resident_figure(run, total_bytes(parts)));
  return html.empty() ? html : fmt::format("<div class=\"pair\">\n{}</div>\n", html);
}

}  // namespace lockstep
