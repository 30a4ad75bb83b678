// SPDX-License-Identifier: Apache-2.0
//
// The columns of a table: names, label and features, guessed from the first rows unless CsvOptions sets them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/formats/csv_file.h"

namespace lockstep {

// The columns of a file.
struct CsvColumns {
  Cells names;  // or none
  CsvDialect dialect;
  std::size_t label = 0;
  const char* label_reason = "";  // why it was chosen
  std::vector<std::size_t> features;

  std::size_t count() const { return features.size(); }
  std::string describe(std::size_t column) const;
};

class CsvColumnFinder {
 public:
  // rows: the first rows of the file, at least one.
  CsvColumnFinder(const std::string& file, const std::vector<Cells>& rows, const CsvDialect& dialect,
                  CsvHeader header, bool log_guesses);

  // Returns true if the file has the label column; test files of competitions have none.
  bool has_label(const CsvColumns& training) const;

  // Throws ConfigError for an unknown column in the options, and DataError for a table without features.
  CsvColumns find(const CsvOptions& options) const;

 private:
  // The label column, and why it was chosen.
  std::pair<std::size_t, const char*> label(const std::string& wanted) const;
  std::vector<std::size_t> listed(std::string_view names) const;
  std::size_t column(std::string_view key, std::string_view wanted) const;

  std::string file_;
  CsvDialect dialect_;
  std::size_t cells_;
  Cells names_;
};

}  // namespace lockstep
