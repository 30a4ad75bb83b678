// SPDX-License-Identifier: Apache-2.0
//
// Reads tables as text, row by row (RFC 4180, with libcsv), as spreadsheets of all locales save them, and
// parses their numbers.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <csv.h>

#include "data/dataset.h"

namespace lockstep {

using Cells = std::vector<std::string>;

// The rows of a file, one by one. A UTF-8 byte order mark is skipped. The constructor throws IoError for a
// file that cannot be read, DataError for UTF-16 and for a compressed file.
class CsvFile {
 public:
  CsvFile(const std::filesystem::path& path, char delimiter);
  ~CsvFile();
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;

  const std::string& name() const { return name_; }
  // The line on which the last row of next() begins, from 1.
  std::int64_t line() const { return line_; }

  // Returns false at the end. Skips blank lines. Throws DataError for malformed quotes.
  bool next(Cells& cells);

 private:
  struct Row {
    Cells cells;
    std::int64_t line;
  };

  bool parse_line();
  static void add_cell(void* text, std::size_t bytes, void* self);
  static void end_row(int, void* self);

  std::string name_;
  std::ifstream file_;
  csv_parser parser_ = {};
  std::string text_;
  std::int64_t lines_ = 0, line_ = 0;
  Row begun_ = {};
  std::deque<Row> rows_;
};

// The delimiter and the decimal point of a file.
struct CsvDialect {
  char delimiter = ',';
  bool decimal_comma = false;  // "1,5", and no number has a point; only if the delimiter is not a comma
};
// Guesses from the first rows: the delimiter that gives rows of equal length, at least two cells, with the
// largest share of numbers; a comma if none does. wanted: data.csv.delimiter.
CsvDialect dialect_of(const std::filesystem::path& path, CsvDelimiter wanted);

// The first 50 rows of a file, or those before the first malformed one.
std::vector<Cells> first_rows(const std::filesystem::path& path, char delimiter);

// A number that is finite in fp32; none for other cells.
std::optional<double> number_of_cell(std::string_view cell, const CsvDialect& dialect);
// A class: a whole number from 0 to 1,000,000, also as "2.0"; none for other cells.
std::optional<std::int32_t> class_of_cell(std::string_view cell, const CsvDialect& dialect);
// Returns true for a cell that marks a missing number: an empty cell, "NA", "nan", "null", "?", ...
bool is_missing(std::string_view cell);

}  // namespace lockstep
