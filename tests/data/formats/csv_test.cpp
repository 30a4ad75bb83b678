// SPDX-License-Identifier: Apache-2.0
#include "data/formats/csv.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/sets/subset.h"
#include "tests/data/idx_files.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class CsvTables : public testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) const {
    folder_.write(name, Bytes(text.begin(), text.end()));
  }
  void write_gzip(const std::string& name, const std::string& text) const {
    folder_.write(name, gzip(Bytes(text.begin(), text.end())));
  }
  std::string path(const std::string& name = ".") const { return (folder_.path() / name).string(); }

  std::unique_ptr<Dataset> open(Split split = Split::train) {
    if (options_.path.empty()) options_.path = path();
    return open_csv(options_, split);
  }
  template <typename E>
  std::string error(Split split = Split::train) {
    std::string message = message_of<E>([&] { open(split); });
    for (std::size_t at = message.find(path()); at != std::string::npos; at = message.find(path()))
      message.replace(at, path().size(), "");
    return message;
  }

  struct Row {
    std::vector<float> values;
    std::int32_t label;
    bool operator==(const Row&) const = default;
    friend std::ostream& operator<<(std::ostream& out, const Row& row) {
      return out << fmt::format("{} of class {}", fmt::join(row.values, " "), row.label);
    }
  };
  static Row row(const Dataset& dataset, std::int64_t index) {
    const ImageShape shape = dataset.image_shape();
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(shape.bytes()));
    Row row{.values = std::vector<float>(static_cast<std::size_t>(shape.width)), .label = 0};
    row.label = dataset.read(index, bytes);
    std::memcpy(row.values.data(), bytes.data(), bytes.size());
    return row;
  }
  static std::vector<Row> rows(const Dataset& dataset) {
    std::vector<Row> all;
    for (std::int64_t i = 0; i < dataset.size(); ++i) all.push_back(row(dataset, i));
    return all;
  }

  DatasetOptions options_ = {.format = "csv", .csv = {.scaling = ColumnScaling::none}};

 private:
  TemporaryFolder folder_;
};

TEST_F(CsvTables, ContainNumbersAndTheLabelInTheLastColumn) {
  write("train.csv", "1,-2.5,0\n+3,4e-2,2\r\n\n 5 ,\"6\",1");
  write("test.csv", "7,8,2\n");
  const std::unique_ptr<Dataset> train = open(), test = open(Split::test);
  EXPECT_EQ(train->image_shape(), (ImageShape{.height = 1, .width = 2, .channels = 1, .type = DType::f32}));
  EXPECT_EQ(train->classes(), 3);
  EXPECT_TRUE(train->class_names().empty());
  EXPECT_EQ(rows(*train), (std::vector<Row>{{{1, -2.5f}, 0}, {{3, 0.04f}, 2}, {{5, 6}, 1}}));
  EXPECT_EQ(rows(*test), (std::vector<Row>{{{7, 8}, 2}}));
  EXPECT_TRUE(train->verified());
}

TEST_F(CsvTables, MayHaveAHeader) {
  write("train.csv", "label,id,length,width\ncat,17,1,2\ndog,18,3,4\nbird,19,5,6\n");
  write("val.csv", "label,id,length,width\ndog,20,7,8\n");
  options_.csv.ignore = "id";
  const std::unique_ptr<Dataset> train = open();
  EXPECT_EQ(train->class_names(), (std::vector<std::string>{"bird", "cat", "dog"}));
  EXPECT_EQ(train->class_counts(), (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(rows(*train), (std::vector<Row>{{{1, 2}, 1}, {{3, 4}, 2}, {{5, 6}, 0}}));
  EXPECT_EQ(rows(*open(Split::test)), (std::vector<Row>{{{7, 8}, 2}}));

  options_.csv = {.label = "2", .ignore = "label, width", .scaling = ColumnScaling::none};
  EXPECT_EQ(row(*open(), 0), (Row{{1}, 17}));
}

TEST_F(CsvTables, QuotedCellsMayContainAnyText) {
  write("train.csv", "\"a, \"\"b\"\"\",size\n\"1\n2\",0\n3,1\n4,0\n5,0\n");
  write("test.csv", "\"a, \"\"b\"\"\",size\n3,1\n");
  const std::unique_ptr<Dataset> train = open();
  EXPECT_EQ(rows(*train),
            (std::vector<Row>{{{3}, 1}, {{4}, 0}, {{5}, 0}}));  // the line break in row 2 makes it no number
  options_.on_error = OnError::stop;
  expect_parts(error<DataError>(),
               {"/train.csv:2", "column 1", "\"a, \"b\"\"", "\"1\n2\"", "data.csv.ignore"});
}

// 1, 2, 3, 6: mean 3, deviation sqrt(3.5).
TEST_F(CsvTables, AreScaledByTheTrainingRows) {
  write("train.csv", "1,7,1e9,0\n2,7,1000000001,0\n3,7,1000000002,1\n6,7,1000000003,1\n");
  write("test.csv", "8,9,1000000004,1\n");
  options_.csv.scaling = ColumnScaling::min_max;
  EXPECT_EQ(row(*open(), 1), (Row{{0.2f, 0, 1.0f / 3}, 0}));
  EXPECT_EQ(row(*open(Split::test), 0), (Row{{1.4f, 0, 4.0f / 3}, 1}));
  options_.csv.scaling = ColumnScaling::standard;
  const auto deviations = [](double value) { return static_cast<float>((value - 3) / std::sqrt(3.5)); };
  const Row first = row(*open(), 0), other = row(*open(Split::test), 0);
  EXPECT_FLOAT_EQ(first.values[0], deviations(1));
  EXPECT_EQ(first.values[1], 0);
  EXPECT_FLOAT_EQ(first.values[2], static_cast<float>(-1.5 / std::sqrt(1.25)));
  EXPECT_FLOAT_EQ(other.values[0], deviations(8));
  EXPECT_EQ(other.values[1], 0);
}

// One file, divided by rows: test rows do not affect the scale.
TEST_F(CsvTables, OneFileCanBeSplit) {
  options_.validation_share = 0.3;
  std::string text;
  for (int i = 0; i < 200; ++i) {
    const bool is_test = is_kept_to_test(static_cast<std::uint64_t>(i), options_.validation_share);
    text += fmt::format("{},{}\n", is_test ? 1000 + i : i, i % 2);
  }
  write("all.csv", text);
  options_.path = path("all.csv");
  options_.csv.scaling = ColumnScaling::min_max;
  const std::unique_ptr<Dataset> train = open_dataset(options_, Split::train);
  const std::unique_ptr<Dataset> test = open_dataset(options_, Split::test);
  EXPECT_EQ(train->size() + test->size(), 200);
  EXPECT_GT(test->size(), 30);
  float least = 1, most = 0;
  for (const Row& each : rows(*train)) {
    least = std::min(least, each.values[0]);
    most = std::max(most, each.values[0]);
  }
  EXPECT_EQ(least, 0);
  EXPECT_EQ(most, 1);

  options_.validation_share = 0;
  expect_parts(error<ConfigError>(Split::test), {"data.path", path("all.csv"), "data.validation_share"});
}

// Both splits read the same file.
TEST_F(CsvTables, OneFileThatIsSplitIsReportedOnce) {
  std::string text = ",x,label\n";
  for (int i = 0; i < 200; ++i) text += fmt::format("{},{},{}\n", i, i % 3, i % 2);
  write("all.csv", text);
  options_.path = path("all.csv");
  options_.validation_share = 0.3;
  testing::internal::CaptureStderr();
  open_dataset(options_, Split::train);
  open_dataset(options_, Split::test);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(lines_naming(log, "data.csv.ignore"), '\n'), 1) << log;
  EXPECT_EQ(std::ranges::count(lines_naming(log, "200 rows"), '\n'), 1) << log;
}

TEST_F(CsvTables, MayConsistOfSeveralFiles) {
  write("train-0.csv", "a,label\n1,0\n");
  write("train-1.CSV", "a,label\n2,1\n");
  write("test.csv", "a,label\n3,0\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(rows(*open()), (std::vector<Row>{{{1}, 0}, {{2}, 1}}));
  expect_parts(lines_naming(testing::internal::GetCapturedStderr(), "2 rows"),
               {"train-0.csv and 1 other file"});
  write("train-1.CSV", "b,label\n2,1\n");
  expect_parts(error<DataError>(), {"/train-1.CSV", "/train-0.csv"});
}

TEST_F(CsvTables, CopiesAndSideFilesAreSkippedAndNamed) {
  write("train.csv", "a,label\n1,0\n2,1\n");
  write("train.csv.2", "a,label\n3,1\n");  // a part of a table
  write("test.csv", "a,label\n4,1\n");
  const std::vector<std::string> skipped = {"#train.csv#", "train.csv.BAK", "train.csv.gz", "train.csv.md5",
                                            "train.csv~"};
  for (const std::string& name : skipped) write(name, "a,label\n5,0\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(rows(*open()), (std::vector<Row>{{{1}, 0}, {{2}, 1}, {{3}, 1}}));
  EXPECT_EQ(rows(*open(Split::test)), (std::vector<Row>{{{4}, 1}}));
  const std::string named = lines_naming(testing::internal::GetCapturedStderr(), skipped);
  EXPECT_EQ(std::ranges::count(named, '\n'), 1) << named;
  for (const char* name : {"train (1).csv", "train(2).csv"}) write(name, "a,label\n5,0\n");
  write("train-b (1).csv", "a,label\n6,0\n");
  EXPECT_EQ(open()->size(), 4);
}

TEST_F(CsvTables, GzipFilesAreUnpacked) {
  write_gzip("train.csv.gz", "a,label\n1,0\n2,1\n");
  write_gzip("test.csv.gz", "a,label\n3,1\n");
  const std::vector<Row> trained = {{{1}, 0}, {{2}, 1}};
  for (int time = 0; time < 2; ++time) {  // the second time the unpacked files exist
    EXPECT_EQ(rows(*open()), trained);
    EXPECT_EQ(rows(*open(Split::test)), (std::vector<Row>{{{3}, 1}}));
  }
  options_.path = path("train.csv.gz");
  EXPECT_EQ(rows(*open()), trained);
}

TEST_F(CsvTables, FilesOfOtherCompressionsAreNamed) {
  for (const char* packed :
       {"PK\x03\x04,1\n,0\n", "\xfd\x37zXZ,1\n,0\n", "\x28\xb5\x2f\xfd,1\n,0\n", "BZh91AY&SY,1\n,0\n"}) {
    write("train.csv.packed", packed);
    expect_parts(error<DataError>(), {"/train.csv.packed", "compressed"});
  }
}

// The files of folds: those with longer numbers are other folds.
TEST_F(CsvTables, TheWordOfTheTestSplitMayHaveDigits) {
  write("train.csv", "a,label\n1,0\n2,1\n");
  write("Fold2-a.csv", "a,label\n3,1\n");
  write("fold21.csv", "a,label\n4,1\n");
  write("fold3.csv", "a,label\n5,1\n");
  options_.test_split = "fold2";
  EXPECT_EQ(rows(*open(Split::test)), (std::vector<Row>{{{3}, 1}}));
  write("train-fold2.csv", "a,label\n6,0\n");
  expect_parts(error<DataError>(), {"/train-fold2.csv"});
  options_.test_split = "train";  // to test with the training rows
  EXPECT_EQ(open(Split::test)->size(), 3);
}

// Among numbers such a label is missing; among names it is a class.
TEST_F(CsvTables, RowsWithoutALabelAreLeftOut) {
  for (const std::string missing : {"NA", "nan", "?", "none"}) {
    SCOPED_TRACE(missing);
    write("train.csv", "a,kind\n1,0\n2,1\n3," + missing + "\n4,10\n5,2\n");
    write("test.csv", "a,kind\n6,10\n7," + missing + "\n8,1\n");
    options_.on_error = OnError::leave_out;
    testing::internal::CaptureStderr();
    const std::unique_ptr<Dataset> train = open();
    const std::string warning = lines_naming(testing::internal::GetCapturedStderr(), "warning");
    expect_parts(warning, {"/train.csv:4", "column 2", "\"kind\"", "\"" + missing + "\""});
    EXPECT_TRUE(train->class_names().empty());
    EXPECT_EQ(rows(*train), (std::vector<Row>{{{1}, 0}, {{2}, 1}, {{4}, 10}, {{5}, 2}}));
    EXPECT_EQ(rows(*open(Split::test)), (std::vector<Row>{{{6}, 10}, {{8}, 1}}));
    options_.on_error = OnError::stop;
    expect_parts(error<DataError>(), {"/train.csv:4", "\"" + missing + "\""});

    write("train.csv", "a,kind\n1,rust\n2," + missing + "\n");
    write("test.csv", "a,kind\n3," + missing + "\n");
    EXPECT_EQ(std::ranges::count(open()->class_names(), missing), 1);
    EXPECT_EQ(open()->size(), 2);
    EXPECT_EQ(open(Split::test)->size(), 1);
  }
  options_.on_error = OnError::leave_out;
  write("train.csv", "a,kind\n1,0\n2,NA\n3,NA\n");
  expect_parts(error<DataError>(), {"/train.csv:3", "\"NA\"", "2 of 3 rows"});
  // The first rows are named, whatever their fault.
  std::string text = "a,kind\n1,0\n2,NA\n";
  for (int row = 0; row < 10; ++row) text += row < 5 ? "word,1\n" : "3,1\n";
  write("train.csv", text);
  testing::internal::CaptureStderr();
  open();
  expect_parts(lines_naming(testing::internal::GetCapturedStderr(), "warning"),
               {"/train.csv:3:", "6 of 12 rows"});
}

TEST_F(CsvTables, UnreadableRowsAreLeftOutOrNamed) {
  const std::string place = "/train.csv:3";
  struct Case {
    std::string row;
    std::vector<std::string> parts;  // of the error, apart from the place
    std::vector<double> numbers = {};
  };
  const Case cases[] = {{"1,2", {"2 cells"}, {2, 3}},
                        {"1,2,3,4", {"4 cells"}, {4, 3}},
                        {"1,2,", {"column 3", "\"kind\""}},
                        {"1,,0", {"column 2", "\"b\"", "\"\"", "data.csv.ignore"}},
                        {"x,2,0", {"column 1", "\"a\"", "\"x\"", "data.csv.ignore"}},
                        {"nan,2,0", {"column 1", "\"a\"", "\"nan\"", "data.csv.ignore"}},
                        {"1e39,2,0", {"column 1", "\"a\"", "\"1e39\"", "data.csv.ignore"}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.row);
    write("train.csv", "a,b,kind\n1,2,0\n" + each.row + "\n3,4,1\n");
    options_.on_error = OnError::leave_out;
    EXPECT_EQ(open()->size(), 2);
    options_.on_error = OnError::stop;
    std::string message = error<DataError>();
    ASSERT_NE(message.find(place), std::string::npos) << message;
    message.erase(message.find(place), place.size());
    expect_parts(message, each.parts);
    for (const double number : each.numbers)
      EXPECT_GE(std::ranges::count(numbers_named_in(message), number), 1) << number << ": " << message;
  }
  // More than half of the rows are unreadable: refuse the file.
  write("train.csv", "a,b,kind\n1,2,0\nx,2,0\ny,2,0\n");
  options_.on_error = OnError::leave_out;
  expect_parts(error<DataError>(), {place, "column 1", "\"a\"", "\"x\"", "data.csv.ignore", "2 of 3 rows"});
}

TEST_F(CsvTables, TestRowsHaveTheClassesOfTrainingRows) {
  write("train.csv", "1,cat\n2,dog\n");
  write("test.csv", "1,cat\n2,cow\n3,dog\n");
  EXPECT_EQ(open(Split::test)->size(), 2);
  options_.on_error = OnError::stop;
  expect_parts(error<DataError>(Split::test), {"/test.csv:2", "\"cow\""});
  write("train.csv", "1,0\n2,1\n");
  write("test.csv", "1,0\n2,2\n");
  expect_parts(error<DataError>(Split::test), {"/test.csv:2", "\"2\""});
}

TEST_F(CsvTables, FilesThatAreNoTablesAreRefused) {
  expect_parts(message_of<IoError>([&] { open(); }), {path(), "train.csv", "test.csv", "val.csv"});
  write("train.csv", "");
  const std::string empty = error<DataError>();
  write("train.csv", "a,b\n");
  const std::string only_names = error<DataError>();
  for (const std::string& message : {empty, only_names}) expect_parts(message, {"/train.csv"});
  EXPECT_NE(only_names, empty);
  write("train.csv", "1\n2\n");
  expect_parts(error<DataError>(), {"/train.csv", "1 cell"});
  const std::string strict = "strict checking";  // a text of libcsv
  write("train.csv", "1,0\n2,\"1\n3,0\n");
  const std::string unclosed = error<DataError>();
  expect_parts(unclosed, {"/train.csv:2"});
  EXPECT_EQ(unclosed.find(strict), std::string::npos) << unclosed;
  write("train.csv", "1,0\n2,1\"1\n");
  expect_parts(error<DataError>(), {"/train.csv:2", strict});
  write("train.csv", "a,kind\n1,0\n");
  options_.csv.label = "species";
  expect_parts(error<ConfigError>(), {"data.csv.label", "\"species\"", "/train.csv", "a, kind"});
  options_.csv = {.ignore = "a, b"};
  expect_parts(error<ConfigError>(), {"data.csv.ignore", "\"b\"", "/train.csv", "a, kind"});
  options_.path = path(std::string(300, 'x'));
  expect_parts(error<IoError>(), {options_.path, "File name too long"});
}

// As spreadsheets save tables: a byte order mark, CRLF line ends, and the label in any column.
TEST_F(CsvTables, MayBeginWithAByteOrderMark) {
  write("train.csv", "\xef\xbb\xbflabel,x,visit\r\n1,2.5,0\r\n0,-1,2\r\n");
  write("test.csv", "\xef\xbb\xbflabel,x,visit\r\n1,4,1\r\n");
  EXPECT_EQ(rows(*open()), (std::vector<Row>{{{2.5f, 0}, 1}, {{-1, 2}, 0}}));
  EXPECT_EQ(rows(*open(Split::test)), (std::vector<Row>{{{4, 1}, 1}}));
  write("train.csv", std::string_view("\xff\xfel\0a\0", 6));
  expect_parts(error<DataError>(), {"/train.csv", "UTF-16"});
}

// The format of countries with decimal commas.
TEST_F(CsvTables, MayHaveSemicolonsAndDecimalCommas) {
  write("train.csv", "breite;höhe;art\n1,5;-2,25;rot\n3;4,0;blau\n");
  const std::vector<Row> expected = {{{1.5f, -2.25f}, 1}, {{3, 4}, 0}};
  testing::internal::CaptureStderr();
  EXPECT_EQ(rows(*open()), expected);
  expect_parts(testing::internal::GetCapturedStderr(), {"warning", "1,5"});
  // In such a table, 1.234 may mean 1234.
  write("train.csv", "breite;höhe;art\n1,5;-2,25;rot\n1.234;2;rot\n3;4,0;blau\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(rows(*open()), expected);
  expect_parts(testing::internal::GetCapturedStderr(), {"train.csv:3", "\"1.234\"", "decimal comma"});
  write("train.csv", "1.5\t-2.25\trot\n3\t4.0\tblau\n");
  EXPECT_EQ(rows(*open()), expected);
  // Text with commas does not change the delimiter from semicolon to comma.
  write("train.csv", "1.5;-2.25;\"rot, hell\"\n3;4.0;blau\n");
  EXPECT_EQ(rows(*open()), expected);
  options_.csv.delimiter = CsvDelimiter::semicolon;
  EXPECT_EQ(rows(*open()), expected);
}

TEST_F(CsvTables, FilesOfASplitHaveOneDecimalPoint) {
  write("train-0.csv", "a;b;art\n1;2;rot\n3;4;blau\n");
  write("train-1.csv", "a;b;art\n1,5;-2;rot\n");
  EXPECT_EQ(rows(*open()), (std::vector<Row>{{{1, 2}, 1}, {{3, 4}, 0}, {{1.5f, -2}, 1}}));
  write("train-2.csv", "a;b;art\n5;6;1.2\n");  // a label is not a number
  EXPECT_EQ(rows(*open()).size(), 4u);
  write("train-2.csv", "a;b;art\n2.5;1;rot\n");
  expect_parts(error<DataError>(), {"/train-2.csv", "decimal points", "/train-1.csv", "decimal commas"});
}

TEST_F(CsvTables, AHeaderIsDetectedInTheFirstRow) {
  struct Case {
    std::string text;
    std::size_t rows;
    bool guessed;  // and reported as a warning
  };
  const Case cases[] = {{"a,b,kind\n1,2,0\n3,4,1\n", 2, false},       // no numbers
                        {"1,2,0\n3,4,1\n", 2, false},                 // only numbers
                        {"5.1,3.5,setosa\n4.9,3,other\n", 2, false},  // text above text
                        {"id,2019,2020\n1,2,0\n3,4,1\n", 2, true},    // text above numbers
                        {"2019,2020,class\n1,2,cat\n3,4,dog\n", 2, true},
                        {"0,1,2\n7,2,0\n3,4,1\n", 2, true},  // pandas without names
                        {"0,1,2,kind\n7,2,9,cat\n3,4,8,dog\n", 2, true},
                        {",0,1,2,kind\n0,7,2,9,cat\n1,3,4,8,dog\n", 2, true},
                        {"0,1,2,cat\n7,2,9,cat\n3,4,8,dog\n", 3, false},
                        {"1,2,y\n3,4,n\n5,6,y\n", 3, false},          // a class, not the label's name
                        {"?,2,0\n3,4,1\n5,6,0\n7,8,1\n", 3, false}};  // a missing number
  for (const Case& each : cases) {
    SCOPED_TRACE(each.text);
    write("train.csv", each.text);
    testing::internal::CaptureStderr();
    EXPECT_EQ(static_cast<std::size_t>(open()->size()), each.rows);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(lines_naming(log, "warning").find("data.csv.header") != std::string::npos, each.guessed) << log;
  }
  write("train.csv", "0,1,2\n7,2,0\n3,4,1\n");
  options_.csv.header = CsvHeader::no;
  EXPECT_EQ(open()->size(), 3);
}

TEST_F(CsvTables, ALabelColumnWithTooManyClassesIsRefusedOrReported) {
  std::string every, many;
  for (int i = 0; i < 100; ++i) {
    every += fmt::format("{},{:.2f}\n", i % 7, 0.37 * i);
    many += fmt::format("{},{:.1f}\n", i % 7, 0.1 * (i % 60));
  }
  write("train.csv", every);
  expect_parts(error<DataError>(), {"column 2", "100 rows", "data.csv.label"});
  write("train.csv", many);
  testing::internal::CaptureStderr();
  open();
  const std::string warning = lines_naming(testing::internal::GetCapturedStderr(), "warning");
  expect_parts(warning, {"column 2", "100 rows", "data.csv.label"});
  EXPECT_GE(std::ranges::count(numbers_named_in(warning), 60.0), 1) << warning;
  // Whole numbers that another program wrote as fractions are classes.
  write("train.csv", "1,0.0\n2,1.0\n3,2.0\n");
  EXPECT_EQ(row(*open(), 2), (Row{{3}, 2}));
}

TEST_F(CsvTables, AColumnOfRowNumbersIsReported) {
  const auto warning = [&](const std::string& name, int factor, const std::string& other = "x",
                           const std::string& fraction = "") {
    std::string text = name + "," + other + ",label\n";
    for (int i = 0; i < 20; ++i) text += fmt::format("{}{},{},{}\n", i * factor % 20, fraction, i % 3, i % 2);
    write("train.csv", text);
    testing::internal::CaptureStderr();
    open();
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  const std::vector<std::string> told = {"column 1", "data.csv.ignore = \"1\""};
  for (const char* name : {"", "Id", "size"}) expect_parts(warning(name, 1), told);
  // In another order, as after a shuffle.
  for (const char* name : {"", "Unnamed: 0", "Id"}) expect_parts(warning(name, 7), told);
  EXPECT_EQ(warning("size", 7), "");
  EXPECT_EQ(warning("index", 7, "x", ".5"), "") << "a measured index";
  // Where a column is called "1", the number 1 would name that column.
  const std::string of_numbers = warning("", 7, "1");
  expect_parts(of_numbers, {"column 1"});
  EXPECT_EQ(of_numbers.find("data.csv.ignore"), std::string::npos) << of_numbers;
}

TEST_F(CsvTables, AColumnThatRepeatsTheLabelIsReported) {
  const auto warning = [&](int last) {
    std::string text = "x,label,label\n";
    for (int i = 0; i < 20; ++i) text += fmt::format("{},{},{}\n", i % 3, i % 2, i < 19 ? i % 2 : last);
    write("train.csv", text);
    testing::internal::CaptureStderr();
    open();
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  expect_parts(warning(1), {"column 3", "data.csv.ignore = \"3\""});
  EXPECT_EQ(warning(0), "");
}

// "x" and "y" may be coordinates.
TEST_F(CsvTables, ALabelYBesideXIsReportedUnlessItIsLast) {
  const auto warning = [&](const std::string& names) {
    write("train.csv", names + "\n1,0,7\n2,1,8\n");
    testing::internal::CaptureStderr();
    open();
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  expect_parts(warning("X,Y,kind"), {"column 2", "data.csv.label"});
  for (const char* names : {"x,kind,y", "x1,y,kind", "x,y,label"}) EXPECT_EQ(warning(names), "") << names;
  options_.csv.label = "y";
  EXPECT_EQ(warning("x,y,kind"), "");
}

TEST_F(CsvTables, UnlabelledTestRowsAreReplacedByValidationRows) {
  write("train.csv", "a,label\n1,0\n2,1\n");
  write("test.csv", "a\n3\n");
  options_.path = path();
  expect_parts(message_of<DataError>([&] { open_dataset(options_, Split::test); }),
               {"test.csv", "\"label\"", "data.test_split", "data.validation_share"});
  write("val.csv", "a,label\n4,1\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(rows(*open(Split::test)), (std::vector<Row>{{{4}, 1}}));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(lines_naming(log, "data.test_split"), '\n'), 1) << log;
  expect_parts(lines_naming(log, "warning"), {"test.csv", "val.csv"});
  options_.test_split = "test";
  expect_parts(error<DataError>(Split::test), {"/test.csv", "\"label\""});
}

TEST_F(CsvTables, FingerprintDependsOnTheContent) {
  write("train.csv", "1,0\n2,1\n");
  const std::uint64_t first = open()->fingerprint();
  EXPECT_EQ(open()->fingerprint(), first);
  write("train.csv", "1,0\n2.5,1\n");
  EXPECT_NE(open()->fingerprint(), first);
}

}  // namespace
}  // namespace lockstep
