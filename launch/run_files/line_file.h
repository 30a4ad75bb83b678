// SPDX-License-Identifier: Apache-2.0
//
// LineFile: a file that gets a line now and then while something more important goes on. Each line is there
// whole or not at all, and a disk that takes none ends nothing: it is told of once, and counted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  // Without its end.
  void add(std::string_view line);
  // How many lines it lacks, and why; empty as long as it has all.
  const std::string& problem() const { return problem_; }

 private:
  std::filesystem::path path_;
  std::int64_t lost_ = 0;
  std::string problem_;
};

}  // namespace lockstep
