// SPDX-License-Identifier: Apache-2.0
//
// Copies tensors between layouts: at the boundaries of a network (weights from and to files, dropout in C, H,
// W order), never between layers that read channels last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream.h"
#include "core/tensor/layout.h"

namespace lockstep {

// The result is [outer, rows, columns]. Its element (o, r, c) is the source's element at o * from_outer + r *
// from_row + c * from_column if c < from_columns, else zero. Offsets are in elements.
struct CudaReorder {
  std::size_t element_bytes = 0;
  std::int64_t outer = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t from_columns = 0;
  std::int64_t from_outer = 0;
  std::int64_t from_row = 0;
  std::int64_t from_column = 0;

  // Both layouts must have the same shape and type.
  static CudaReorder between(const Layout& from, const Layout& to);
};

void cuda_reorder(Stream& stream, const CudaReorder& reorder, const void* from, void* to);

}  // namespace lockstep
