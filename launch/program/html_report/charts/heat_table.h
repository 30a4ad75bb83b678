// SPDX-License-Identifier: Apache-2.0
//
// HeatTable: a matrix of numbers as a table whose cells are darker for larger numbers.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct HeatCell {
  double shade = 0;         // 0 to 1; 0 or not finite: none
  std::string text;         // empty: only the shade
  std::string title;        // tooltip; empty: none
  bool stands_out = false;  // uses the second colour
};

struct HeatTable {
  std::string corner;  // names rows and columns: "rank, by bucket"
  std::vector<std::string> column_names, row_names;
  std::vector<std::vector<HeatCell>> rows;
  bool small = false;  // small cells, for large tables
};

// The table scrolls within its own box if it is too large.
std::string to_html(const HeatTable& table);

}  // namespace lockstep
