// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/files/monitor_table.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

// Candidate columns that distinguish devices.
struct TellingColumn {
  const char* name;
  const char* label;  // prefix of the value
};
constexpr TellingColumn kDeviceColumns[] = {
    {"rank", "rank "}, {"index", "device "}, {"pci.bus_id", ""}, {"uuid", ""}, {"name", ""}};
constexpr std::string_view kHostPrefix = "host.";

struct CsvColumn {
  std::string name;
  std::string unit;  // empty: none
};

struct CsvRow {
  std::vector<std::string_view> cells;
  double seconds = 0;
};

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells = split_text(line, ',');
  for (std::string_view& cell : cells) cell = trimmed(cell, " \t");
  return cells;
}

// "utilization.gpu [%]".
CsvColumn csv_column(std::string_view header) {
  const std::size_t bracket = header.rfind('[');
  if (!header.ends_with(']') || bracket == std::string_view::npos)
    return {.name = std::string(header), .unit = ""};
  return {.name = std::string(trimmed(header.substr(0, bracket), " \t")),
          .unit = std::string(header.substr(bracket + 1, header.size() - bracket - 2))};
}

// The number that a cell begins with: "37 %", "1234 MiB".
std::optional<double> leading_number(std::string_view cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Parses "2024/01/31 12:00:00.123", also with dashes or a T, or Unix seconds. The origin is unspecified: only
// differences have a meaning.
std::optional<double> seconds_of(std::string_view cell) {
  const std::string text(cell);
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%4d%*1[-/]%2d%*1[-/]%2d%*1[ T]%2d:%2d:%lf", &year, &month, &day, &hour,
                  &minute, &second) == 6) {
    const std::chrono::year_month_day date{std::chrono::year(year),
                                           std::chrono::month(static_cast<unsigned>(month)),
                                           std::chrono::day(static_cast<unsigned>(day))};
    if (!date.ok() || !std::isfinite(second)) return std::nullopt;
    const auto days = std::chrono::sys_days(date).time_since_epoch().count();
    return 86400.0 * static_cast<double>(days) + 3600.0 * hour + 60.0 * minute + second;
  }
  return leading_number(cell);
}

class CsvTable {
 public:
  CsvTable(std::string_view text, const std::string& name) {
    for_each_line(text, [&](std::string_view line, std::size_t number, bool whole) {
      if (number == 1) {
        if (whole) begin(line, name);
      } else if (whole && !line.empty() && line != header_) {  // a resumed run may repeat the header
        CsvRow row{.cells = cells_of(line)};
        const std::optional<double> seconds =
            row.cells.size() > time_ ? seconds_of(row.cells[time_]) : std::nullopt;
        if (row.cells.size() != columns_.size() || !seconds)
          throw DataError(fmt::format(
              "{}:{}: expected {} values with a valid timestamp, found {} values; remove this line, or "
              "restore the file",
              name, number, columns_.size(), row.cells.size()));
        row.seconds = *seconds;
        rows_.push_back(std::move(row));
      }
    });
  }

  std::vector<MonitorSeries> series() const {
    const std::vector<std::string> devices = device_labels(), host(rows_.size());
    std::vector<MonitorSeries> all;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      if (columns_[column].unit.empty()) continue;
      const bool of_host = columns_[column].name.starts_with(kHostPrefix);
      add(column, of_host ? host : devices, of_host, all);
    }
    return all;
  }

 private:
  void begin(std::string_view line, const std::string& name) {
    header_ = line;
    for (const std::string_view cell : cells_of(line)) columns_.push_back(csv_column(cell));
    const auto found = std::ranges::find(columns_, "timestamp", &CsvColumn::name);
    if (found == columns_.end())
      throw DataError(
          fmt::format("{}:1: no column is named timestamp; restore the file, or remove it", name));
    time_ = static_cast<std::size_t>(found - columns_.begin());
  }

  // Labels of the rows, extended by each candidate column that distinguishes more of them.
  std::vector<std::string> device_labels() const {
    std::vector<std::string> found(rows_.size());
    std::size_t kinds = 1;
    for (const auto& [name, label] : kDeviceColumns) {
      const auto column = std::ranges::find(columns_, name, &CsvColumn::name);
      if (column == columns_.end()) continue;
      std::vector<std::string> more = found;
      for (std::size_t row = 0; row < rows_.size(); ++row) {
        const auto cell = rows_[row].cells[static_cast<std::size_t>(column - columns_.begin())];
        more[row] += fmt::format("{}{}{}", more[row].empty() ? "" : ", ", label, cell);
      }
      const std::size_t now = std::set(more.begin(), more.end()).size();
      if (now > kinds) {
        found = std::move(more);
        kinds = now;
      }
    }
    return found;
  }

  void add(std::size_t column, const std::vector<std::string>& labels, bool once_a_time,
           std::vector<MonitorSeries>& all) const {
    std::map<std::string, std::vector<ChartPoint>> by_device;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::optional<double> value = leading_number(rows_[row].cells[column]);
      const double minutes = (rows_[row].seconds - rows_.front().seconds) / 60;
      std::vector<ChartPoint>& points = by_device[labels[row]];
      if (!value || (once_a_time && !points.empty() && points.back().x == minutes)) continue;
      points.push_back({.x = minutes, .y = *value});
    }
    for (auto& [device, points] : by_device) {
      if (points.empty()) continue;
      all.push_back({.column = columns_[column].name,
                     .unit = columns_[column].unit,
                     .device = device,
                     .points = std::move(points)});
    }
  }

  std::string_view header_;
  std::vector<CsvColumn> columns_;
  std::size_t time_ = 0;
  std::vector<CsvRow> rows_;
};

}  // namespace

std::vector<MonitorSeries> read_monitor_table(std::string_view text, const std::string& name) {
  return CsvTable(text, name).series();
}

}  // namespace lockstep
