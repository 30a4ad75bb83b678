// SPDX-License-Identifier: Apache-2.0
//
// LineFile: appends lines to a file during a training. Each line is written whole or not at all. A failed
// write does not end the training: the first one logs a warning, and all are counted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  // line: without the line break.
  void add(std::string_view line);
  // The number of missing lines and the last error, for people; empty where no line is missing.
  const std::string& problem() const { return problem_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::int64_t lost_ = 0;
  std::string problem_;
};

}  // namespace lockstep
