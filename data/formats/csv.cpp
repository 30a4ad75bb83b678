// SPDX-License-Identifier: Apache-2.0
#include "data/formats/csv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "core/text/text.h"
#include "data/containers/split_files.h"
#include "data/containers/unpacked_file.h"
#include "data/formats/csv_columns.h"
#include "data/formats/csv_file.h"
#include "data/sets/held_images.h"
#include "data/sets/subset.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The rows of a split, in the order of its files.
struct Rows {
  std::string name;  // of the first file
  std::size_t files = 0;
  CsvColumns columns;
  std::string with_fractions;  // the first file that shows its decimal point
  std::vector<double> values;  // [rows, columns.count()]
  Cells labels;

  std::size_t size() const { return labels.size(); }
};

DataError different_columns(const std::string& file, const std::string& first) {
  return DataError(fmt::format(
      "{}: its columns differ from those of {}; give both the same columns in the same order", file, first));
}

class RowReader {
 public:
  RowReader(const CsvOptions& options, OnError on_error, bool log_guesses)
      : options_(options), on_error_(on_error), log_guesses_(log_guesses) {}

  // Rows whose label is no class are left out. knows(label) returns true for the classes; none: the classes
  // are all labels of these rows, except that among numbers "NA" and the like mark a missing label.
  Rows read(const std::vector<fs::path>& files, const std::function<bool(const std::string&)>& knows) {
    Rows rows;
    std::vector<Doubtful> doubtful;
    for (const fs::path& path : files) {
      const CsvDialect dialect = dialect_of(path, options_.delimiter);
      const std::vector<Cells> first = first_rows(path, dialect.delimiter);
      CsvFile file(path, dialect.delimiter);
      Cells cells;
      if (!file.next(cells)) throw DataError(fmt::format("{}: the file is empty", file.name()));
      const CsvColumns columns =
          CsvColumnFinder(file.name(), first, dialect, options_.header, log_guesses_).find(options_);
      if (rows.name.empty()) {
        rows.name = file.name();
        rows.columns = columns;
      } else if (columns.names != rows.columns.names || columns.features != rows.columns.features) {
        throw different_columns(file.name(), rows.name);
      }
      if (shows_decimal_point(first, columns)) settle_decimal_point(rows, file.name(), dialect);
      ++rows.files;
      const std::size_t wanted = cells.size();
      for (bool there = columns.names.empty() || file.next(cells); there; there = file.next(cells)) {
        ++seen_;
        const std::string fault = add(rows, cells, wanted, knows);
        if (!fault.empty()) leave_out(seen_, fmt::format("{}:{}: {}", file.name(), file.line(), fault));
        if (!knows && fault.empty() && is_missing(rows.labels.back()))
          doubtful.push_back({.seen = seen_, .row = rows.size() - 1, .file = &path, .line = file.line()});
      }
    }
    if (!doubtful.empty() && other_labels_are_numbers(rows)) leave_out_doubtful(rows, doubtful);
    if (2 * faults_.size() > seen_) {
      throw DataError(
          fmt::format("{}; {} of {} rows have such errors", faults_.begin()->second, faults_.size(), seen_));
    }
    if (rows.size() == 0) throw DataError(fmt::format("{}: the table has no rows", rows.name));
    return rows;
  }

  // Logs the guesses, and warnings about decimal commas and columns that should be left out.
  void tell_table(const Rows& rows) const {
    const CsvColumns& columns = rows.columns;
    log::info("{}{}: {} rows; {}; the label is {}, {} (data.csv.header and data.csv.label set this)",
              rows.name, rows.files > 1 ? fmt::format(" and {}", counted(rows.files - 1, "other file")) : "",
              rows.size(),
              columns.names.empty() ? "columns have no names" : "the first row names the columns",
              columns.describe(columns.label), columns.label_reason);
    if (columns.dialect.decimal_comma) {
      log::shared_warning(
          "{}: a comma in a number is read as the decimal point (\"1,5\" is 1.5); remove commas that "
          "separate thousands",
          rows.name);
    }
    if (label_may_be_coordinate(columns)) {
      log::shared_warning(
          "{}: {} is the label because of its name, but beside a column \"x\" it may be a coordinate; "
          "data.csv.label selects the label column",
          rows.name, columns.describe(columns.label));
    }
    for (std::size_t i = 0; i < columns.count(); ++i) {
      const bool numbers = numbers_rows(rows, i);
      if (!numbers && !repeats_label(rows, i)) continue;
      const std::string number = std::to_string(columns.features[i] + 1);
      const auto named = std::ranges::find(columns.names, number);
      const bool names_another =
          named != columns.names.end() &&
          static_cast<std::size_t>(named - columns.names.begin()) != columns.features[i];
      log::shared_warning("{}: {} {}; {}", rows.name, columns.describe(columns.features[i]),
                          numbers ? "only numbers the rows" : "repeats the label",
                          names_another ? "remove it from the file"
                                        : fmt::format("data.csv.ignore = \"{}\" leaves it out", number));
    }
  }

  // Logs the first five rows left out, and their total number if there are more.
  void tell() const {
    constexpr std::size_t kNamedRows = 5;
    std::size_t named = 0;
    for (const auto& [row, fault] : faults_) {
      if (named++ == kNamedRows) break;
      log::shared_warning("{}; the row is left out", fault);
    }
    if (faults_.size() > kNamedRows) log::shared_warning("{} of {} rows are left out", faults_.size(), seen_);
  }

 private:
  // A row with a label such as "NA", which may be the name of a class.
  struct Doubtful {
    std::size_t seen;  // the number of the row among all rows
    std::size_t row;   // in Rows
    const fs::path* file;
    std::int64_t line;
  };

  // Returns true if a number of the features has the decimal point of their dialect. Labels may be "1.2" in
  // tables with decimal commas.
  static bool shows_decimal_point(const std::vector<Cells>& rows, const CsvColumns& columns) {
    CsvDialect other = columns.dialect;
    other.decimal_comma = !other.decimal_comma;
    return std::ranges::any_of(rows, [&](const Cells& row) {
      return std::ranges::any_of(columns.features, [&](std::size_t column) {
        return column < row.size() && number_of_cell(row[column], columns.dialect) &&
               !number_of_cell(row[column], other);
      });
    });
  }

  // Numbers of files with different decimal points are ambiguous: "1.234" may mean 1234.
  static void settle_decimal_point(Rows& rows, const std::string& file, const CsvDialect& dialect) {
    if (rows.with_fractions.empty()) {
      rows.with_fractions = file;
      rows.columns.dialect = dialect;
    } else if (dialect.decimal_comma != rows.columns.dialect.decimal_comma) {
      throw DataError(fmt::format(
          "{}: its numbers have decimal {}, but those of {} have decimal {}; use one of the two in all files",
          file, dialect.decimal_comma ? "commas" : "points", rows.with_fractions,
          dialect.decimal_comma ? "points" : "commas"));
    }
  }

  // Returns true for a guessed label "y" beside a column "x". As the last column, "y" is usually the label.
  bool label_may_be_coordinate(const CsvColumns& columns) const {
    const auto is_called = [](std::string_view wanted) {
      return [wanted](const std::string& name) { return lower_case(name) == wanted; };
    };
    const Cells& names = columns.names;
    return options_.label == "auto" && !names.empty() && columns.label + 1 < names.size() &&
           is_called("y")(names[columns.label]) && std::ranges::any_of(names, is_called("x"));
  }

  static bool other_labels_are_numbers(const Rows& rows) {
    std::size_t numbers = 0;
    for (const std::string& label : rows.labels) {
      if (is_missing(label)) continue;
      if (!number_of_cell(label, rows.columns.dialect)) return false;
      ++numbers;
    }
    return numbers > 0;
  }

  void leave_out_doubtful(Rows& rows, const std::vector<Doubtful>& doubtful) {
    for (const Doubtful& each : doubtful) {
      leave_out(each.seen,
                fmt::format("{}:{}: {} contains \"{}\", but the other labels are numbers",
                            each.file->string(), each.line, rows.columns.describe(rows.columns.label),
                            printable(rows.labels[each.row])));
    }
    const std::size_t width = rows.columns.count();
    const std::vector<double> values = std::exchange(rows.values, {});
    const Cells labels = std::exchange(rows.labels, {});
    for (std::size_t row = 0; row < labels.size(); ++row) {
      if (is_missing(labels[row])) continue;
      const std::span<const double> numbers = std::span(values).subspan(row * width, width);
      rows.values.insert(rows.values.end(), numbers.begin(), numbers.end());
      rows.labels.push_back(labels[row]);
    }
  }

  static constexpr std::size_t kLeast = 10;  // columns of fewer rows are not judged

  // Returns true for a column that counts the rows from 0 or 1. In a column with a name that programs give to
  // such columns, all different whole numbers suffice: rows may be in another order, or missing.
  static bool numbers_rows(const Rows& rows, std::size_t column) {
    constexpr std::string_view kNames[] = {"", "unnamed: 0", "index", "id"};
    const std::size_t width = rows.columns.count();
    const auto value = [&](std::size_t row) { return rows.values[row * width + column]; };
    if (rows.size() < kLeast) return false;
    bool in_order = value(0) == 0 || value(0) == 1;
    for (std::size_t row = 1; row < rows.size() && in_order; ++row)
      in_order = value(row) == value(0) + static_cast<double>(row);
    const Cells& names = rows.columns.names;
    if (in_order || names.empty()) return in_order;
    if (std::ranges::count(kNames, lower_case(names[rows.columns.features[column]])) == 0) return false;
    std::vector<double> sorted(rows.size());
    for (std::size_t row = 0; row < rows.size(); ++row) sorted[row] = value(row);
    if (std::ranges::any_of(sorted, [](double each) { return each != std::floor(each); })) return false;
    std::ranges::sort(sorted);
    return std::ranges::adjacent_find(sorted) == sorted.end();
  }

  static bool repeats_label(const Rows& rows, std::size_t column) {
    std::size_t row = 0;
    while (row < rows.size() && number_of_cell(rows.labels[row], rows.columns.dialect) ==
                                    rows.values[row * rows.columns.count() + column])
      ++row;
    return row >= kLeast && row == rows.size();
  }

  // Adds the row and returns an empty string, or returns what is wrong with it.
  static std::string add(Rows& rows, const Cells& cells, std::size_t wanted,
                         const std::function<bool(const std::string&)>& knows) {
    if (cells.size() != wanted)
      return fmt::format("the row has {}, but the first row has {}", counted(cells.size(), "cell"), wanted);
    const std::string& label = cells[rows.columns.label];
    if (label.empty()) return fmt::format("{} has no label", rows.columns.describe(rows.columns.label));
    if (knows && !knows(label)) return fmt::format("no training row has the label \"{}\"", printable(label));
    const std::size_t begin = rows.values.size();
    for (const std::size_t column : rows.columns.features) {
      const std::optional<double> value = number_of_cell(cells[column], rows.columns.dialect);
      if (!value) {
        rows.values.resize(begin);
        return fmt::format(
            "{} contains \"{}\", which is not a number{}; write a number, or list the column in "
            "data.csv.ignore",
            rows.columns.describe(column), printable(cells[column]),
            rows.columns.dialect.decimal_comma ? " with a decimal comma" : "");
      }
      rows.values.push_back(*value);
    }
    rows.labels.push_back(label);
    return {};
  }

  void leave_out(std::size_t row, const std::string& fault) {
    if (on_error_ == OnError::stop) throw DataError(fault);
    faults_.emplace(row, fault);
  }

  const CsvOptions& options_;
  OnError on_error_;
  bool log_guesses_;
  std::size_t seen_ = 0;
  std::map<std::size_t, std::string> faults_;  // of rows that are left out, by their number
};

// The classes: numbers, or names in bytewise order.
class Classes {
 public:
  explicit Classes(const Rows& rows) : dialect_(rows.columns.dialect) {
    bool numbered = true;
    for (const std::string& label : rows.labels) {
      const std::optional<std::int32_t> number = class_of_cell(label, dialect_);
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
  std::size_t values() const { return classes_.size(); }  // different label texts
  const Cells& names() const { return names_; }           // empty: labels are numbers
  std::optional<std::int32_t> find(const std::string& label) const {
    if (names_.empty()) {
      const std::optional<std::int32_t> number = class_of_cell(label, dialect_);
      return number && *number < count_ ? number : std::nullopt;
    }
    const auto found = classes_.find(label);
    return found == classes_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  CsvDialect dialect_;
  std::map<std::string, std::int32_t> classes_;
  std::int64_t count_ = 0;
  Cells names_;
};

// Scales a column's values: (value - shift) * factor.
struct Scale {
  std::vector<double> shift, factor;

  // takes(row) returns true if the row counts for the statistics.
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

constexpr SplitNames kCsvNames{.mark = ".csv", .expected = "train.csv and test.csv, or val.csv"};

std::vector<fs::path> files_of(const DatasetOptions& options, Split split,
                               const LacksLabels& lacks_labels = {}) {
  const std::string& path = options.path;
  std::error_code unknown;  // split_files() reports it
  const bool is_file = fs::is_regular_file(path, unknown);
  if (is_file && split == Split::test) {
    throw ConfigError(
        fmt::format("data.path = \"{}\": a single file has no test rows; set data.validation_share, for "
                    "example to 0.2, or name a folder with train.csv and test.csv",
                    path));
  }
  return is_file ? std::vector<fs::path>{path} : split_files(options, split, kCsvNames, lacks_labels);
}

std::vector<fs::path> unpacked(std::vector<fs::path> files) {
  std::ranges::transform(files, files.begin(), unpacked_file);
  return files;
}

// Detects a label column that holds no classes but measured numbers, names or row numbers.
void check_labels(const Rows& rows, const Classes& classes) {
  constexpr std::size_t kFew = 20;
  const std::string column = rows.columns.describe(rows.columns.label);
  if (classes.values() == rows.size() && rows.size() >= kFew) {
    throw DataError(
        fmt::format("{}: {} is used as the label but has a different value in each of {} rows, so its values "
                    "are not classes; set data.csv.label to the label column",
                    rows.name, column, rows.size()));
  }
  if (classes.values() > kFew && 10 * classes.values() > rows.size()) {
    log::shared_warning(
        "{}: {} is used as the label but has {} different values in {} rows, like a measured number; "
        "data.csv.label selects the label column",
        rows.name, column, classes.values(), rows.size());
  }
}

// The files of the test split, unpacked. Throws UnlabelledError if the first has no label column.
std::vector<fs::path> labelled_files(const DatasetOptions& options, const CsvColumns& training) {
  const auto lacks_label = [&](const std::vector<fs::path>& files) {
    const fs::path path = unpacked_file(files.front());
    const CsvDialect dialect = dialect_of(path, options.csv.delimiter);
    const std::vector<Cells> first = first_rows(path, dialect.delimiter);
    return !first.empty() &&
           !CsvColumnFinder(path.string(), first, dialect, options.csv.header, false).has_label(training);
  };
  std::vector<fs::path> files = unpacked(files_of(options, Split::test, lacks_label));
  if (lacks_label(files)) {
    throw UnlabelledError(fmt::format("{}: the label column \"{}\" is missing", files.front().string(),
                                      printable(training.names[training.label])));
  }
  return files;
}

}  // namespace

std::unique_ptr<Dataset> open_csv(const DatasetOptions& options, Split split) {
  std::optional<log::Quiet> quiet;
  if (split == Split::test) quiet.emplace();  // opening the training split logs about its files
  std::vector<fs::path> files = files_of(options, Split::train);
  quiet.reset();
  RowReader train_reader(options.csv, options.on_error, split == Split::train);
  Rows rows = train_reader.read(unpacked(std::move(files)), nullptr);
  const Classes classes(rows);
  if (split == Split::train) {
    train_reader.tell();
    train_reader.tell_table(rows);
    check_labels(rows, classes);
  }
  const Scale scale = Scale::of(rows, options.csv.scaling, [&](std::size_t row) {
    return options.validation_share == 0 || !is_kept_to_test(row, options.validation_share);
  });
  if (split == Split::test) {
    const CsvColumns columns = rows.columns;
    const std::string train = rows.name;
    const auto known = [&](const std::string& label) { return classes.find(label).has_value(); };
    RowReader test_reader(options.csv, options.on_error, false);
    rows = test_reader.read(labelled_files(options, columns), known);
    test_reader.tell();
    if (rows.columns.names != columns.names || rows.columns.features != columns.features)
      throw different_columns(rows.name, train);
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
