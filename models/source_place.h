// SPDX-License-Identifier: Apache-2.0
//
// SourcePlace: a place in the source: file and line of std::source_location, also for compilers that lack it
// (clang before 16).
#pragma once

namespace lockstep {

class SourcePlace {
 public:
  constexpr SourcePlace() = default;  // nowhere: line 0
  // Use as a default argument: gives the place of the function's caller.
  static constexpr SourcePlace current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    SourcePlace place;
    place.file_ = file;
    place.line_ = line;
    return place;
  }

  constexpr const char* file_name() const { return file_; }
  constexpr int line() const { return line_; }

 private:
  const char* file_ = "";
  int line_ = 0;
};

}  // namespace lockstep
