// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/html.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "launch/observe/charts/markup.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/html_report/style.h"
#include "launch/program/version.h"

namespace lockstep {
namespace {

constexpr const char* kDash = "\u2013";

std::string cell_html(const HtmlCell& cell, const char* tag) {
  return fmt::format("<{0}{1}>{2}</{0}>", tag, cell.number ? " class=\"n\"" : "", cell.html);
}

}  // namespace

std::string number_text(double value, int significant) {
  if (!std::isfinite(value)) return kDash;
  const double size = std::abs(value);
  return size < 1000 || size >= 1e15 ? fmt::format("{:.{}g}", value, significant) : thousands(value);
}

std::string percent_text(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", 100 * fraction) : kDash;
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds) || std::abs(seconds) > 1e12) return kDash;
  if (seconds >= 100) return duration(seconds);
  const auto three_digits = [](double value, const char* unit) {
    return fmt::format("{:.{}f} {}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, unit);
  };
  if (seconds == 0) return "0 s";
  if (seconds >= 0.9995 || seconds < 0) return three_digits(seconds, "s");
  if (seconds >= 0.9995e-3) return three_digits(1e3 * seconds, "ms");
  return three_digits(1e6 * seconds, "\u00b5s");
}

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return kDash;
  for (const char* unit : {"B", "KiB", "MiB"}) {
    if (std::abs(bytes) < 999.5) return fmt::format("{:.3g} {}", bytes, unit);
    bytes /= 1024;
  }
  return fmt::format("{:.3g} GiB", bytes);
}

std::string utc_text(double unix_seconds) {
  if (!(std::abs(unix_seconds) < 1e11)) return kDash;
  const std::chrono::sys_seconds time{
      std::chrono::seconds(static_cast<std::int64_t>(std::floor(unix_seconds)))};
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date{day};
  const std::chrono::hh_mm_ss clock{time - day};
  return fmt::format("{}-{:02}-{:02} {:02}:{:02}:{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

HtmlCell text_cell(const std::string& text) { return {.html = in_markup(text)}; }
HtmlCell number_cell(const std::string& text) { return {.html = in_markup(text), .number = true}; }

HtmlCell barred_cell(const std::string& html, double fraction, const std::string& color_class) {
  const double percent = std::isfinite(fraction) ? 100 * std::clamp(fraction, 0.0, 1.0) : 0;
  return {
      .html = fmt::format("{}<span class=\"bar\"><span class=\"{}\" style=\"width:{:.2f}%\"></span></span>",
                          html, color_class, percent),
      .number = true};
}

std::string to_html(const HtmlTable& table) {
  std::string html = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (const HtmlCell& head : table.heads) html += cell_html(head, "th");
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<HtmlCell>& row : table.rows) {
    html += "<tr>";
    for (const HtmlCell& cell : row) html += cell_html(cell, "td");
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_card(const std::string& name, const std::string& value, const std::string& more,
                      CardUse use) {
  return fmt::format("<div class=\"card{}\"><span>{}</span><b>{}</b><span>{}</span></div>\n",
                     use == CardUse::leads ? " lead" : "", name, in_markup(value), in_markup(more));
}

std::string html_page(const std::string& title, const std::string& body, const std::string& footer) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<title>{} \u2013 Lockstep report</title>\n<style>{}</style>\n</head>\n<body>\n{}"
      "<footer>Written by Lockstep {}. {}</footer>\n</body>\n</html>\n",
      in_markup(title), kReportStyle, body, kVersion, footer);
}

}  // namespace lockstep
