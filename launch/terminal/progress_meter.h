// SPDX-License-Identifier: Apache-2.0
//
// ProgressMeter: how far something is that may take long, how fast it goes, and how long it still takes. On a
// terminal a bar, redrawn at most ten times a second, which goes when this does; elsewhere a line every ten
// seconds, so that what is short says nothing.
#pragma once

#include <cstdint>
#include <string>

#include "core/timeline.h"
#include "launch/terminal/terminal.h"

namespace lockstep {

class ProgressMeter {
 public:
  // what: "packing". unit: what is counted, "images".
  ProgressMeter(std::string what, std::string unit, const Terminal& terminal,
                std::int64_t begin_ns = now_ns());
  ~ProgressMeter();
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  // Prints text() at this moment. Not from several threads at once.
  void show(std::int64_t done, std::int64_t all);
  // What is to be printed then; empty: nothing is due. "packing  [###...]  3,000/10,000  1,500 images/s  0:05
  // left".
  std::string text(std::int64_t now_ns, std::int64_t done, std::int64_t all);
  // Empties the bar's line.
  void clear();
  double seconds() const;  // since the beginning

 private:
  std::string what_, unit_;
  Terminal terminal_;
  std::int64_t began_ns_;
  std::int64_t shown_ns_;
  bool drawn_ = false;  // a bar
};

}  // namespace lockstep
