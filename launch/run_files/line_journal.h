// SPDX-License-Identifier: Apache-2.0
//
// LineJournal: a file to which a long job appends a line for each thing that it has done, so that it goes on
// where it stood whatever ended it. A line that was cut off is dropped; what add() has returned from is on
// disk. One process at a time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

class LineJournal {
 public:
  // Reads what is there. Throws IoError, and DataError for what is no regular file.
  explicit LineJournal(std::filesystem::path path);

  // Whole lines, without their ends, that were there at first.
  const std::vector<std::string>& found() const { return found_; }
  // The file then ends where the last whole line does.
  void drop_cut_off_line() const;
  // Throws IoError; the file then ends where it did.
  void add(const std::string& line) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::vector<std::string> found_;
  std::uintmax_t whole_bytes_ = 0;
  bool cut_off_ = false;
};

}  // namespace lockstep
