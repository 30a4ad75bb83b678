// SPDX-License-Identifier: Apache-2.0
//
// HeatTable: a matrix of numbers as a table whose cells are as dark as the numbers are large.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct HeatCell {
  double shade = 0;         // of 1; 0, or not finite: none
  std::string text;         // empty: the shade alone
  std::string title;        // what the pointer is told; empty: nothing
  bool stands_out = false;  // in the second colour
};

struct HeatTable {
  std::string corner;  // what rows and columns are: "rank, by bucket"
  std::vector<std::string> column_names, row_names;
  std::vector<std::vector<HeatCell>> rows;
  bool small = false;  // of many cells
};

// Scrolls in a box of its own where it is too large.
std::string to_html(const HeatTable& table);

}  // namespace lockstep
