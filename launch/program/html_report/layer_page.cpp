// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/layer_page.h"

#include <limits>

#include <fmt/format.h>

#include "launch/observe/charts/markup.h"
#include "launch/program/html_report/charts/chart.h"
#include "launch/program/html_report/html.h"
#include "launch/program/network/layer_table.h"

namespace lockstep {
namespace {

// A figure that was not measured is 0; NaN is shown as a dash.
double measured(double figure) { return figure > 0 ? figure : std::numeric_limits<double>::quiet_NaN(); }

HtmlCell share_cell(double share, std::size_t color) {
  return barred_cell(percent_text(share), share, curve_class(color));
}

std::string account_section(const LayerPage& page) {
  HtmlTable table{.heads = {text_cell("phase"), number_cell("time of a step"), number_cell("share")}};
  for (std::size_t i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (page.account[phase] == 0) continue;
    table.rows.push_back({{.html = fmt::format("<span class=\"key {}\"></span>{}", phase_class(phase),
                                               in_markup(phase_text(phase)))},
                          number_cell(seconds_text(page.account[phase] / page.steps)),
                          number_cell(percent_text(page.account[phase] / page.account.total()))});
  }
  return fmt::format("<h2>The step</h2>\n<div class=\"panel\">{}\n{}</div>\n", account_bar(page.account),
                     to_html(table));
}

std::string kind_section(const LayerPage& page) {
  const double all = sum_of_milliseconds(page.rows);
  HtmlTable table{.heads = {text_cell("kind"), number_cell("time"), number_cell("share")}};
  for (const auto& [kind, milliseconds] : milliseconds_by_kind(page.rows)) {
    table.rows.push_back(
        {text_cell(kind), number_cell(seconds_text(milliseconds * 1e-3)), share_cell(milliseconds / all, 0)});
  }
  return "<h2>By kind</h2>\n<div class=\"panel\">" + to_html(table) + "</div>\n";
}

std::string layer_section(const LayerPage& page) {
  const double all = sum_of_milliseconds(page.rows);
  HtmlTable table{.heads = {text_cell("layer"), text_cell("direction"), text_cell("kernel"),
                            number_cell("time"), number_cell("share"), number_cell("GFLOP/s"),
                            number_cell("GB/s"), number_cell("of peak"), text_cell("bound by")}};
  for (const LayerProfile::Row& row : page.rows) {
    table.rows.push_back(
        {text_cell(row.name), text_cell(row.direction), text_cell(row.kernel),
         number_cell(seconds_text(row.milliseconds * 1e-3)), share_cell(row.milliseconds / all, 0),
         number_cell(row.gigaflops > 0 ? number_text(row.gigaflops, 3) : ""),
         number_cell(number_text(row.gigabytes_per_second, 3)), share_cell(measured(row.share_of_peak), 2),
         text_cell(row.share_of_peak == 0 ? ""
                   : row.memory_bound     ? "memory"
                                          : "compute")});
  }
  std::string notes;
  for (const std::string& line : explain_above_peak(page.rows))
    notes += fmt::format("<p class=\"note\">{}</p>\n", in_markup(line));
  return "<h2>By layer</h2>\n<div class=\"panel\">" + to_html(table) + notes + "</div>\n";
}

}  // namespace

std::string layer_page(const LayerPage& page) {
  const double step_seconds = page.account.total() / page.steps;
  const std::string body =
      fmt::format("<h1>{}, layer by layer</h1>\n<p class=\"soft\">{}</p>\n", in_markup(page.network),
                  in_markup(page.where)) +
      "<div class=\"cards\">\n" + html_card("step", seconds_text(step_seconds), "of rank 0", CardUse::leads) +
      html_card("of peak", percent_text(page.step_gigaflops / measured(page.peak_gigaflops)),
                "by operations") +
      html_card("reached", number_text(page.step_gigaflops), "GFLOP/s in a step") +
      html_card("peak", number_text(measured(page.peak_gigaflops)), "GFLOP/s, measured") +
      html_card("peak", number_text(measured(page.peak_gigabytes)), "GB/s of memory, measured") + "</div>\n" +
      account_section(page) + kind_section(page) + layer_section(page);
  return html_page(
      page.network + ", layer by layer", body,
      "Operations are those that the kernels execute; Winograd\u2019s transforms do not count. Bytes count "
      "each tensor as read and written once. \u201cOf peak\u201d is the minimum time that the slower of the "
      "two needs, divided by the measured time.");
}

}  // namespace lockstep
