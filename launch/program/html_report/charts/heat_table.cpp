// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/charts/heat_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "launch/observe/charts/markup.h"

namespace lockstep {
namespace {

// Text must be readable on the darkest cell.
constexpr double kDarkestPercent = 60;
constexpr double kFaintestPercent = 4;

std::string cell_of(const HeatCell& cell) {
  std::string attributes;
  if (cell.shade > 0) {
    const double share = std::min(cell.shade, 1.0);
    attributes = fmt::format(" style=\"--h:{:.0f}%\"{}",
                             kFaintestPercent + (kDarkestPercent - kFaintestPercent) * share,
                             cell.stands_out ? " class=\"o\"" : "");
  }
  if (!cell.title.empty()) attributes += fmt::format(" title=\"{}\"", in_markup(cell.title));
  return fmt::format("<td{}>{}</td>", attributes, in_markup(cell.text));
}

}  // namespace

std::string to_html(const HeatTable& table) {
  std::string html = fmt::format("<div class=\"scroll\"><table class=\"heat{}\">\n<thead><tr><th>{}</th>",
                                 table.small ? " small" : "", in_markup(table.corner));
  for (const std::string& name : table.column_names) html += fmt::format("<th>{}</th>", in_markup(name));
  html += "</tr></thead>\n<tbody>\n";
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    html += fmt::format("<tr><th>{}</th>", in_markup(table.row_names[row]));
    for (const HeatCell& cell : table.rows[row]) html += cell_of(cell);
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace lockstep
