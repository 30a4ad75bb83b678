// SPDX-License-Identifier: Apache-2.0
#include "data/formats/csv_columns.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

// Names of a label column, in lower case, in order of preference.
constexpr std::string_view kLabelNames[] = {"label", "labels", "class", "target", "y"};

// Returns true if the first row holds the column names. With CsvHeader::auto_ the signs are: it has no
// numbers; or a text above a column of numbers; or a usual name of the label column; or its numbers are 0, 1,
// 2 and so on, which pandas writes for columns without names. The last three are uncertain and logged as a
// warning; a text that occurs again in its column, such as a class "y", disproves them.
bool has_header(const std::string& file, const std::vector<Cells>& rows, const CsvDialect& dialect,
                CsvHeader wanted, bool log_guesses) {
  if (wanted != CsvHeader::auto_) return wanted == CsvHeader::yes;
  const Cells& first = rows.front();
  const auto is_number = [&](const std::string& cell) { return number_of_cell(cell, dialect).has_value(); };
  if (std::ranges::none_of(first, is_number)) return true;
  const char* sign = nullptr;
  for (std::size_t column = 0; column < first.size() && rows.size() > 1; ++column) {
    if (is_number(first[column]) || is_missing(first[column])) continue;
    const bool occurs_below = std::any_of(rows.begin() + 1, rows.end(), [&](const Cells& row) {
      return column < row.size() && row[column] == first[column];
    });
    if (occurs_below) return false;
    if (std::ranges::count(kLabelNames, lower_case(first[column])) > 0)
      sign = "it contains a usual name of the label column";
    const bool numbers_below = std::all_of(rows.begin() + 1, rows.end(), [&](const Cells& row) {
      return column < row.size() && is_number(row[column]);
    });
    if (numbers_below) sign = "it has text above a column of numbers";
  }
  std::size_t numbers = 0;
  bool counts = true;
  for (const std::string& cell : first)
    if (is_number(cell)) counts &= cell == std::to_string(numbers++);
  if (counts && numbers >= 3) sign = "it numbers the columns";
  if (sign != nullptr && log_guesses) {
    log::shared_warning("{}: the first row is read as column names because {} (data.csv.header sets this)",
                        file, sign);
  }
  return sign != nullptr;
}

}  // namespace

std::string CsvColumns::describe(std::size_t column) const {
  return names.empty() ? fmt::format("column {}", column + 1)
                       : fmt::format("column {} (\"{}\")", column + 1, printable(names[column]));
}

CsvColumnFinder::CsvColumnFinder(const std::string& file, const std::vector<Cells>& rows,
                                 const CsvDialect& dialect, CsvHeader header, bool log_guesses)
    : file_(file), dialect_(dialect), cells_(rows.front().size()) {
  if (has_header(file, rows, dialect, header, log_guesses)) names_ = rows.front();
}

bool CsvColumnFinder::has_label(const CsvColumns& training) const {
  return names_.empty() || training.names.empty() ||
         std::ranges::count(names_, training.names[training.label]) > 0;
}

CsvColumns CsvColumnFinder::find(const CsvOptions& options) const {
  CsvColumns columns{.names = names_, .dialect = dialect_};
  std::tie(columns.label, columns.label_reason) = label(options.label);
  const std::vector<std::size_t> ignored = listed(options.ignore);
  for (std::size_t column = 0; column < cells_; ++column) {
    if (column != columns.label && std::ranges::count(ignored, column) == 0)
      columns.features.push_back(column);
  }
  if (columns.features.empty()) {
    throw DataError(
        fmt::format("{}: a row has {}; expected a label and at least one number (data.csv.delimiter sets "
                    "what separates them)",
                    file_, counted(cells_, "cell")));
  }
  return columns;
}

std::pair<std::size_t, const char*> CsvColumnFinder::label(const std::string& wanted) const {
  if (wanted != "auto") return {column("data.csv.label", wanted), "set by data.csv.label"};
  for (const std::string_view name : kLabelNames)
    for (std::size_t column = 0; column < names_.size(); ++column)
      if (lower_case(names_[column]) == name) return {column, "chosen by its name"};
  return {cells_ - 1, "the last column"};
}

std::vector<std::size_t> CsvColumnFinder::listed(std::string_view names) const {
  if (names == "none") return {};
  std::vector<std::string_view> parts = split_text(names, ',');
  if (parts.back().empty()) parts.pop_back();  // a comma may end the list
  std::vector<std::size_t> columns;
  for (const std::string_view part : parts) columns.push_back(column("data.csv.ignore", trimmed(part)));
  return columns;
}

std::size_t CsvColumnFinder::column(std::string_view key, std::string_view wanted) const {
  const auto called = std::ranges::find(names_, wanted);
  if (called != names_.end()) return static_cast<std::size_t>(called - names_.begin());
  const std::optional<std::int32_t> number = class_of_cell(wanted, {});
  if (number && *number >= 1 && static_cast<std::size_t>(*number) <= cells_)
    return static_cast<std::size_t>(*number) - 1;
  throw ConfigError(fmt::format(
      "{} = \"{}\": no such column; {} has {}", key, wanted, file_,
      names_.empty() ? fmt::format("columns 1 to {}, without names", cells_)
                     : fmt::format("the columns {}", printable(fmt::format("{}", fmt::join(names_, ", "))))));
}

}  // namespace lockstep
