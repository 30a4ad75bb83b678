// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

using Axis = MatrixView::Axis;

// Sorts axes by descending stride, so that MatrixView merges axes that form one longer stride.
std::vector<Axis> in_memory_order(std::vector<Axis> axes) {
  std::ranges::sort(axes, [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  return axes;
}

std::vector<std::int64_t> offsets_of(const std::vector<Axis>& axes) {
  std::vector<std::int64_t> offsets = {0};
  for (const Axis& axis : axes) {
    std::vector<std::int64_t> finer;
    for (const std::int64_t offset : offsets) {
      for (std::int64_t i = 0; i < axis.extent; ++i) finer.push_back(offset + i * axis.stride);
    }
    offsets = std::move(finer);
  }
  return offsets;
}

// Removes the last axis if it has this stride and returns its extent; else returns 1.
std::int64_t take_last(std::vector<Axis>& axes, std::int64_t stride) {
  if (axes.empty() || axes.back().stride != stride) return 1;
  const std::int64_t extent = axes.back().extent;
  axes.pop_back();
  return extent;
}

}  // namespace

LowRankShape::LowRankShape(const MatrixView& view) {
  const MatrixView ordered(in_memory_order(view.row_axes()), in_memory_order(view.column_axes()));
  std::vector<Axis> rows = ordered.row_axes(), columns = ordered.column_axes();
  rows_are_fast_ = !rows.empty() && rows.back().stride == 1;
  std::vector<Axis>& fast = rows_are_fast_ ? rows : columns;
  std::vector<Axis>& slow = rows_are_fast_ ? columns : rows;
  fast_ = take_last(fast, 1);
  slow_ = take_last(slow, fast_);
  fast_offsets_ = offsets_of(fast);
  slow_offsets_ = offsets_of(slow);
  CHECK(elements() == view.rows() * view.columns(), "the tiles have {} elements, the matrix is {} by {}",
        elements(), view.rows(), view.columns());
}

}  // namespace lockstep
