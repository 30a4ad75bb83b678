// SPDX-License-Identifier: Apache-2.0
//
// LineJournal: a file to which a long job appends a line for each completed item, so that it can resume after
// any end. A line without a line break is dropped. A line is on disk when add() returns. For one process at a
// time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

class LineJournal {
 public:
  // Reads the file if it exists. Throws IoError, and DataError where it is not a regular file.
  explicit LineJournal(std::filesystem::path path);

  // The complete lines that the constructor read, without line breaks.
  const std::vector<std::string>& found() const { return found_; }
  // Truncates the file after its last complete line. Throws IoError.
  void drop_cut_off_line() const;
  // Throws IoError; the file then has its previous lines.
  void add(const std::string& line) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::vector<std::string> found_;
  std::uintmax_t whole_bytes_ = 0;
  bool cut_off_ = false;
};

}  // namespace lockstep
