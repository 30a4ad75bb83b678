// SPDX-License-Identifier: Apache-2.0
#include "data/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <csv.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"
#include "data/containers/split_files.h"
#include "data/held_images.h"
#include "data/subset.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using Cells = std::vector<std::string>;

std::optional<double> number_of_cell(std::string_view cell) {
  if (cell.starts_with('+')) cell.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size()) return std::nullopt;
  if (!(std::abs(value) <= std::numeric_limits<float>::max())) return std::nullopt;
  return value;
}

// From 0 on; what is larger is no label of anyone's.
std::optional<std::int32_t> class_of_cell(std::string_view cell) {
  constexpr std::int32_t kMost = 1'000'000;
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || value < 0 || value > kMost)
    return std::nullopt;
  return value;
}

// The rows of a file, one by one, by libcsv.
class CsvFile {
 public:
  explicit CsvFile(const fs::path& path) : name_(path.string()), file_(path, std::ios::binary) {
    if (!file_ || !fs::is_regular_file(path))
      throw IoError(fmt::format("{}: cannot be read: not a regular file, or not allowed", name_));
    if (csv_init(&parser_, CSV_STRICT | CSV_STRICT_FINI) != 0) throw IoError("libcsv: out of memory");
  }
  ~CsvFile() { csv_free(&parser_); }
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;

  const std::string& name() const { return name_; }
  // Of the row that next() gave: where it begins, from 1 on.
  std::int64_t line() const { return line_; }

  // False: there is no more. Blank lines are none. Throws DataError for quotes that make no sense.
  bool next(Cells& cells) {
    while (rows_.empty()) {
      if (!parse_line()) return false;
    }
    cells = std::move(rows_.front().cells);
    line_ = rows_.front().line;
    rows_.pop_front();
    return true;
  }

 private:
  struct Row {
    Cells cells;
    std::int64_t line;
  };

  // Which ends no row, where a quoted cell goes on; or several, where lines end as they did on old Macs.
  bool parse_line() {
    if (!std::getline(file_, text_)) {
      if (file_.bad()) throw IoError(fmt::format("{}: cannot be read", name_));
      if (csv_fini(&parser_, add_cell, end_row, this) != 0)
        throw DataError(fmt::format("{}:{}: a quote that is never closed", name_, begun_.line));
      return false;
    }
    ++lines_;
    const bool begins = begun_.cells.empty() && parser_.entry_pos == 0 && parser_.quoted == 0;
    if (begins) begun_.line = lines_;
    text_ += '\n';
    if (csv_parse(&parser_, text_.data(), text_.size(), add_cell, end_row, this) != text_.size()) {
      throw DataError(fmt::format("{}:{}: {}; a quote within a cell is written twice, and the cell in quotes",
                                  name_, lines_, csv_strerror(csv_error(&parser_))));
    }
    return true;
  }

  static void add_cell(void* text, std::size_t bytes, void* self) {
    static_cast<CsvFile*>(self)->begun_.cells.emplace_back(static_cast<const char*>(text), bytes);
  }
  static void end_row(int, void* self) {
    auto* file = static_cast<CsvFile*>(self);
    file->rows_.push_back(std::move(file->begun_));
    file->begun_ = {.cells = {}, .line = file->lines_};
  }

  std::string name_;
  std::ifstream file_;
  csv_parser parser_ = {};
  std::string text_;
  std::int64_t lines_ = 0, line_ = 0;
  Row begun_ = {};
  std::deque<Row> rows_;
};

// What the columns of a file are.
struct Columns {
  Cells names;  // or none
  std::size_t label = 0;
  std::vector<std::size_t> features;

  std::size_t count() const { return features.size(); }
  std::string describe(std::size_t column) const {
    return names.empty() ? fmt::format("column {}", column + 1)
                         : fmt::format("column {} (\"{}\")", column + 1, printable(names[column]));
  }
};

bool is_header(const Cells& cells) {
  return std::ranges::none_of(cells,
                              [](const std::string& cell) { return number_of_cell(cell).has_value(); });
}

class ColumnFinder {
 public:
  ColumnFinder(const std::string& file, const Cells& first) : file_(file), cells_(first.size()) {
    if (is_header(first)) names_ = first;
  }

  Columns find(const CsvOptions& options) const {
    Columns columns{.names = names_};
    columns.label = label(options.label);
    const std::vector<std::size_t> ignored = listed(options.ignore);
    for (std::size_t column = 0; column < cells_; ++column) {
      if (column != columns.label && std::ranges::count(ignored, column) == 0)
        columns.features.push_back(column);
    }
    if (columns.features.empty()) {
      throw DataError(
          fmt::format("{}: a row has {} cells; a label and a number at least, with commas between them, are "
                      "expected",
                      file_, cells_));
    }
    return columns;
  }

 private:
  std::size_t label(const std::string& wanted) const {
    if (wanted != "auto") return column("data.csv.label", wanted);
    const auto called = std::ranges::find(names_, "label");
    return called == names_.end() ? cells_ - 1 : static_cast<std::size_t>(called - names_.begin());
  }

  std::vector<std::size_t> listed(std::string_view names) const {
    std::vector<std::size_t> columns;
    if (names == "none") return columns;
    while (!names.empty()) {
      const std::size_t comma = std::min(names.find(','), names.size());
      std::string_view name = names.substr(0, comma);
      while (name.starts_with(' ')) name.remove_prefix(1);
      while (name.ends_with(' ')) name.remove_suffix(1);
      columns.push_back(column("data.csv.ignore", name));
      names.remove_prefix(std::min(comma + 1, names.size()));
    }
    return columns;
  }

  std::size_t column(std::string_view key, std::string_view wanted) const {
    const auto called = std::ranges::find(names_, wanted);
    if (called != names_.end()) return static_cast<std::size_t>(called - names_.begin());
    const std::optional<std::int32_t> number = class_of_cell(wanted);
    if (number && *number >= 1 && static_cast<std::size_t>(*number) <= cells_)
      return static_cast<std::size_t>(*number) - 1;
    throw ConfigError(fmt::format(
        "{} = \"{}\": {} has {}", key, wanted, file_,
        names_.empty()
            ? fmt::format("columns 1 to {}, without names", cells_)
            : fmt::format("the columns {}", printable(fmt::format("{}", fmt::join(names_, ", "))))));
  }

  std::string file_;
  std::size_t cells_;
  Cells names_;
};

// The rows of a split, in the order of its files.
struct Rows {
  std::string name;  // of the first file
  Columns columns;
  std::vector<double> values;  // columns.count() a row
  Cells labels;

  std::size_t size() const { return labels.size(); }
};

class RowReader {
 public:
  RowReader(const CsvOptions& options, OnError on_error) : options_(options), on_error_(on_error) {}

  // knows: of a label that is no class. Null: all are.
  template <typename Knows>
  Rows read(const std::vector<fs::path>& files, Knows&& knows) {
    Rows rows;
    for (const fs::path& path : files) {
      CsvFile file(path);
      Cells cells;
      if (!file.next(cells)) throw DataError(fmt::format("{}: the file is empty", file.name()));
      const Columns columns = ColumnFinder(file.name(), cells).find(options_);
      if (rows.name.empty()) {
        rows.name = file.name();
        rows.columns = columns;
      } else if (columns.names != rows.columns.names || columns.features != rows.columns.features) {
        throw DataError(fmt::format("{}: its columns are not those of {}", file.name(), rows.name));
      }
      const std::size_t wanted = cells.size();
      for (bool there = columns.names.empty() || file.next(cells); there; there = file.next(cells)) {
        ++seen_;
        const std::string fault = add(rows, cells, wanted, knows);
        if (!fault.empty()) leave_out(fmt::format("{}:{}: {}", file.name(), file.line(), fault));
      }
    }
    if (2 * faults_.size() > seen_) {
      throw DataError(fmt::format("{}; {} of {} rows are like that", faults_.front(), faults_.size(), seen_));
    }
    if (rows.size() == 0) throw DataError(fmt::format("{}: the table has no rows", rows.name));
    return rows;
  }

  // The first of what was left out, by name, and how many there are.
  void tell() const {
    constexpr std::size_t kNamed = 5;
    for (std::size_t i = 0; i < std::min(faults_.size(), kNamed); ++i)
      log::shared_warning("{}; the row is left out", faults_[i]);
    if (faults_.size() > kNamed) log::shared_warning("{} rows of {} are left out", faults_.size(), seen_);
  }

 private:
  // What is wrong with it; or empty, and it is there.
  template <typename Knows>
  static std::string add(Rows& rows, const Cells& cells, std::size_t wanted, Knows&& knows) {
    if (cells.size() != wanted)
      return fmt::format("{} cells, and the first row has {}", cells.size(), wanted);
    const std::string& label = cells[rows.columns.label];
    if (label.empty()) return fmt::format("{} has no label", rows.columns.describe(rows.columns.label));
    if (!knows(label)) return fmt::format("no training row has the label \"{}\"", printable(label));
    const std::size_t begin = rows.values.size();
    for (const std::size_t column : rows.columns.features) {
      const std::optional<double> value = number_of_cell(cells[column]);
      if (!value) {
        rows.values.resize(begin);
        return fmt::format(
            "{} holds \"{}\", which is no number; write a number, or name the column in "
            "data.csv.ignore",
            rows.columns.describe(column), printable(cells[column]));
      }
      rows.values.push_back(*value);
    }
    rows.labels.push_back(label);
    return {};
  }

  void leave_out(const std::string& fault) {
    if (on_error_ == OnError::stop) throw DataError(fault);
    faults_.push_back(fault);
  }

  const CsvOptions& options_;
  OnError on_error_;
  std::size_t seen_ = 0;
  std::vector<std::string> faults_;  // of rows that are left out
};

// Of labels: numbers, or names.
class Classes {
 public:
  explicit Classes(const Cells& labels) {
    bool numbered = true;
    for (const std::string& label : labels) {
      const std::optional<std::int32_t> number = class_of_cell(label);
      numbered = numbered && number.has_value();
      if (number) count_ = std::max<std::int64_t>(count_, *number + 1);
      classes_.emplace(label, 0);
    }
    if (numbered) return;
    count_ = 0;
    for (auto& [name, number] : classes_) number = static_cast<std::int32_t>(count_++);
    for (const auto& [name, number] : classes_) names_.push_back(name);
  }

  std::int64_t count() const { return count_; }
  const Cells& names() const { return names_; }  // none: they are numbers
  std::optional<std::int32_t> find(const std::string& label) const {
    if (names_.empty()) {
      const std::optional<std::int32_t> number = class_of_cell(label);
      return number && *number < count_ ? number : std::nullopt;
    }
    const auto found = classes_.find(label);
    return found == classes_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::map<std::string, std::int32_t> classes_;
  std::int64_t count_ = 0;
  Cells names_;
};

// (value - shift) * factor, by column.
struct Scale {
  std::vector<double> shift, factor;

  // takes: whether a row counts.
  template <typename Takes>
  static Scale of(const Rows& rows, ColumnScaling scaling, Takes&& takes) {
    const std::size_t columns = rows.columns.count();
    Scale scale{.shift = std::vector<double>(columns, 0.0), .factor = std::vector<double>(columns, 1.0)};
    if (scaling == ColumnScaling::none) return scale;
    for (std::size_t column = 0; column < columns; ++column) {
      double least = HUGE_VAL, most = -HUGE_VAL, mean = 0, squares = 0;
      std::int64_t count = 0;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (!takes(row)) continue;
        const double value = rows.values[row * columns + column];
        least = std::min(least, value);
        most = std::max(most, value);
        const double apart = value - mean;  // Welford's
        mean += apart / static_cast<double>(++count);
        squares += apart * (value - mean);
      }
      const double width = scaling == ColumnScaling::min_max
                               ? most - least
                               : std::sqrt(squares / static_cast<double>(std::max<std::int64_t>(count, 1)));
      scale.shift[column] = scaling == ColumnScaling::min_max ? least : mean;
      scale.factor[column] = width > 0 && std::isfinite(1 / width) ? 1 / width : 0;
    }
    return scale;
  }

  float operator()(std::size_t column, double value) const {
    return static_cast<float>((value - shift[column]) * factor[column]);
  }
};

std::vector<fs::path> files_of(const std::string& path, Split split) {
  if (!fs::is_regular_file(path))
    return split_files(path, split, {.mark = ".csv", .expected = "train.csv and test.csv, or val.csv"});
  if (split == Split::train) return {path};
  throw ConfigError(
      fmt::format("data.path = \"{}\": one file has no test rows; set data.validation_share, "
                  "such as 0.2, or name a folder with train.csv and test.csv",
                  path));
}

}  // namespace

std::unique_ptr<Dataset> open_csv(const DatasetOptions& options, Split split) {
  const auto any = [](const std::string&) { return true; };
  RowReader train_reader(options.csv, options.on_error);
  Rows rows = train_reader.read(files_of(options.path, Split::train), any);
  if (split == Split::train) train_reader.tell();
  const Classes classes(rows.labels);
  const Scale scale = Scale::of(rows, options.csv.scaling, [&](std::size_t row) {
    return options.validation_share == 0 || !is_kept_to_test(row, options.validation_share);
  });
  if (split == Split::test) {
    const Columns columns = rows.columns;
    const std::string train = rows.name;
    const auto known = [&](const std::string& label) { return classes.find(label).has_value(); };
    RowReader test_reader(options.csv, options.on_error);
    rows = test_reader.read(files_of(options.path, Split::test), known);
    test_reader.tell();
    if (rows.columns.names != columns.names || rows.columns.features != columns.features)
      throw DataError(fmt::format("{}: its columns are not those of {}", rows.name, train));
  }
  const std::size_t width = rows.columns.count();
  const ImageShape shape{
      .height = 1, .width = static_cast<std::int64_t>(width), .channels = 1, .type = DType::f32};
  std::vector<std::uint8_t> bytes(rows.size() * width * sizeof(float));
  std::vector<std::int32_t> labels;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    labels.push_back(*classes.find(rows.labels[row]));
    for (std::size_t column = 0; column < width; ++column) {
      const std::size_t at = row * width + column;
      const float value = scale(column, rows.values[at]);
      std::memcpy(bytes.data() + at * sizeof(float), &value, sizeof(float));
    }
  }
  return std::make_unique<HeldImages>(shape, classes.count(), std::move(bytes), std::move(labels),
                                      classes.names());
}

}  // namespace lockstep
