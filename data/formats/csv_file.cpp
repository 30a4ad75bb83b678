// SPDX-License-Identifier: Apache-2.0
#include "data/formats/csv_file.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";
// The first bytes of files of zip, xz, zstd and bzip2 (at its default level).
constexpr std::string_view kPackedMarks[] = {"PK\x03\x04", "\xfd\x37zX", "\x28\xb5\x2f\xfd", "BZh9"};

}  // namespace

CsvFile::CsvFile(const fs::path& path, char delimiter) : name_(path.string()), file_(path, std::ios::binary) {
  if (!file_ || !fs::is_regular_file(path))
    throw IoError(fmt::format("{}: cannot be read: not a regular file, or no permission", name_));
  char mark[4] = {};
  file_.read(mark, sizeof(mark));
  const std::string_view begin(mark, static_cast<std::size_t>(file_.gcount()));
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff"))
    throw DataError(fmt::format("{}: the text is UTF-16; save it as UTF-8", name_));
  if (std::ranges::count(kPackedMarks, begin) > 0)
    throw DataError(fmt::format("{}: the file is compressed; unpack it, or compress it with gzip", name_));
  file_.clear();
  file_.seekg(begin.starts_with(kUtf8Mark) ? static_cast<std::streamoff>(kUtf8Mark.size()) : 0);
  if (csv_init(&parser_, CSV_STRICT | CSV_STRICT_FINI) != 0) throw IoError("libcsv: out of memory");
  csv_set_delim(&parser_, static_cast<unsigned char>(delimiter));
}

CsvFile::~CsvFile() { csv_free(&parser_); }

bool CsvFile::next(Cells& cells) {
  while (rows_.empty()) {
    if (!parse_line()) return false;
  }
  cells = std::move(rows_.front().cells);
  line_ = rows_.front().line;
  rows_.pop_front();
  return true;
}

// A line ends no row if a quoted cell continues, and several rows if they end in carriage returns only.
bool CsvFile::parse_line() {
  if (!std::getline(file_, text_)) {
    if (file_.bad()) throw IoError(fmt::format("{}: cannot be read", name_));
    if (csv_fini(&parser_, add_cell, end_row, this) != 0)
      throw DataError(fmt::format("{}:{}: a quote is not closed", name_, begun_.line));
    return false;
  }
  ++lines_;
  const bool begins = begun_.cells.empty() && parser_.entry_pos == 0 && parser_.quoted == 0;
  if (begins) begun_.line = lines_;
  text_ += '\n';
  if (csv_parse(&parser_, text_.data(), text_.size(), add_cell, end_row, this) != text_.size()) {
    throw DataError(fmt::format("{}:{}: {}; write a quote within a cell twice, and put the cell in quotes",
                                name_, lines_, csv_strerror(csv_error(&parser_))));
  }
  return true;
}

void CsvFile::add_cell(void* text, std::size_t bytes, void* self) {
  static_cast<CsvFile*>(self)->begun_.cells.emplace_back(static_cast<const char*>(text), bytes);
}

void CsvFile::end_row(int, void* self) {
  auto* file = static_cast<CsvFile*>(self);
  file->rows_.push_back(std::move(file->begun_));
  file->begun_ = {.cells = {}, .line = file->lines_};
}

std::vector<Cells> first_rows(const fs::path& path, char delimiter) {
  constexpr std::size_t kRows = 50;
  std::vector<Cells> rows;
  Cells cells;
  try {
    CsvFile file(path, delimiter);
    while (rows.size() < kRows && file.next(cells)) rows.push_back(cells);
  } catch (const DataError&) {  // reported when the table is read
  }
  return rows;
}

CsvDialect dialect_of(const fs::path& path, CsvDelimiter wanted) {
  constexpr std::pair<CsvDelimiter, char> kDelimiters[] = {
      {CsvDelimiter::comma, ','}, {CsvDelimiter::semicolon, ';'}, {CsvDelimiter::tab, '\t'}};
  CsvDialect best;
  double most = -1;
  for (const auto& [delimiter, character] : kDelimiters) {
    if (wanted != CsvDelimiter::auto_ && wanted != delimiter) continue;
    const std::vector<Cells> rows = first_rows(path, character);
    const bool is_table =
        !rows.empty() && rows.front().size() > 1 &&
        std::ranges::all_of(rows, [&](const Cells& row) { return row.size() == rows[0].size(); });
    const CsvDialect with_points{.delimiter = character},
        with_commas{.delimiter = character, .decimal_comma = true};
    double cells = 0, points = 0, commas = 0;
    for (const Cells& row : rows) {
      for (const std::string& cell : row) {
        ++cells;
        if (number_of_cell(cell, with_points)) ++points;
        if (number_of_cell(cell, with_commas)) ++commas;
      }
    }
    const double share = std::max(points, commas) / std::max(cells, 1.0);
    if ((is_table && share > most) || wanted == delimiter) {
      most = share;
      best = character != ',' && commas > points ? with_commas : with_points;
    }
  }
  return best;
}

std::optional<double> number_of_cell(std::string_view cell, const CsvDialect& dialect) {
  std::string with_point;
  if (dialect.decimal_comma) {
    if (cell.find('.') != std::string_view::npos) return std::nullopt;  // "1.234" may be 1234
    with_point = cell;
    std::ranges::replace(with_point, ',', '.');
    cell = with_point;
  }
  if (cell.starts_with('+')) cell.remove_prefix(1);
  const auto value = number_from<double>(cell);
  return value && std::abs(*value) <= std::numeric_limits<float>::max() ? value : std::nullopt;
}

std::optional<std::int32_t> class_of_cell(std::string_view cell, const CsvDialect& dialect) {
  constexpr double kMost = 1'000'000;
  const std::optional<double> value = number_of_cell(cell, dialect);
  if (!value || *value < 0 || *value > kMost || *value != std::floor(*value)) return std::nullopt;
  return static_cast<std::int32_t>(*value);
}

bool is_missing(std::string_view cell) {
  constexpr std::string_view kWords[] = {"", "?", "-", "na", "n/a", "nan", "null", "none", "nil", "missing"};
  return std::ranges::count(kWords, lower_case(cell)) > 0;
}

}  // namespace lockstep
