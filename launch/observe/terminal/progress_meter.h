// SPDX-License-Identifier: Apache-2.0
//
// ProgressMeter: progress, rate and remaining time of a long operation. On a terminal it draws a bar, at most
// ten times a second, and clears it on destruction; elsewhere it prints a line every ten seconds, so that a
// short operation prints nothing.
#pragma once

#include <cstdint>
#include <string>

#include "core/system/terminal.h"
#include "core/timeline.h"

namespace lockstep {

class ProgressMeter {
 public:
  // what: name of the operation, "packing". unit: the counted items, "images".
  ProgressMeter(std::string what, std::string unit, const Terminal& terminal,
                std::int64_t begin_ns = now_ns());
  ~ProgressMeter();
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  // Prints text() for the current time. Not thread-safe.
  void show(std::int64_t done, std::int64_t all);
  // The text to print at now_ns, such as "packing  [###...]  3,000/10,000  1,500 images/s  0:05 left"; empty:
  // none is due.
  std::string text(std::int64_t now_ns, std::int64_t done, std::int64_t all);
  // Clears the line of a drawn bar.
  void clear();
  double seconds() const;  // since begin_ns

 private:
  std::string what_, unit_;
  Terminal terminal_;
  std::int64_t began_ns_;
  std::int64_t shown_ns_;
  bool drawn_ = false;  // a bar is on the terminal
};

}  // namespace lockstep
