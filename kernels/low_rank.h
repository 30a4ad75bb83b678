// SPDX-License-Identifier: Apache-2.0
//
// Products with factors of few columns: what PowerSGD (Vogels, Karimireddy and Jaggi, "PowerSGD: Practical
// Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithm 1) makes of a
// gradient. A matrix M of n rows and m columns, which lies in memory as a Layout says, is brought near by P *
// Q^T, where P has `rank` columns of n elements and Q as many of m. Columns lie one behind another: element
// (i, k) of P is P[k * n + i].
//
// All is fp32 but for the sums of the orthogonalisation, in fp64. Nothing that is not finite disappears: it
// is found in what is made of it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout.h"
#include "core/random.h"

namespace lockstep {

// Where the elements of a matrix lie, as tiles: memory is cut into tiles of `slow` times `fast` elements
// without gaps, the fast ones next to each other. One side of the matrix (its rows, or its columns) is the
// fast one. Element fast_tile * fast + f of that side and slow_tile * slow + s of the other lies at
// fast_offsets[fast_tile] + slow_offsets[slow_tile] + s * fast + f. So either side is numbered in the order
// of memory, which may be another than that of the MatrixView.
class LowRankShape {
 public:
  explicit LowRankShape(const MatrixView& view);

  std::int64_t rows() const { return rows_are_fast_ ? fast_count() : slow_count(); }
  std::int64_t columns() const { return rows_are_fast_ ? slow_count() : fast_count(); }
  std::int64_t elements() const { return fast_count() * slow_count(); }
  // Of both factors, for each rank.
  std::int64_t factor_elements() const { return fast_count() + slow_count(); }

  bool rows_are_fast() const { return rows_are_fast_; }
  std::int64_t fast() const { return fast_; }
  std::int64_t slow() const { return slow_; }
  std::int64_t fast_count() const { return fast_ * static_cast<std::int64_t>(fast_offsets_.size()); }
  std::int64_t slow_count() const { return slow_ * static_cast<std::int64_t>(slow_offsets_.size()); }
  const std::vector<std::int64_t>& fast_offsets() const { return fast_offsets_; }
  const std::vector<std::int64_t>& slow_offsets() const { return slow_offsets_; }
  // One row behind another: so all weights lie on a GPU.
  bool row_major() const { return !rows_are_fast_ && fast_offsets_.size() == 1 && slow_offsets_.size() == 1; }

 private:
  bool rows_are_fast_ = false;
  std::int64_t fast_ = 1;
  std::int64_t slow_ = 1;
  std::vector<std::int64_t> fast_offsets_;
  std::vector<std::int64_t> slow_offsets_;
};

// matrix = *learning_rate * gradient / *loss_scale + residual, in place of the gradient, and rows = matrix *
// columns. The shape must outlive the call's work; so in all that follows.
struct LowRankRows {
  const LowRankShape* shape = nullptr;
  std::int64_t rank = 0;
  float* matrix = nullptr;               // the gradient, and then the matrix
  const float* loss_scale = nullptr;     // in memory of the device; null: 1
  const float* learning_rate = nullptr;  // the same; above 0
  const float* residual = nullptr;       // null: zeros
  const float* columns = nullptr;        // Q of the step before
  float* rows = nullptr;                 // P
};

// Modified Gram-Schmidt, each column twice, so that what is left of a column that others nearly span is
// orthogonal to them, too. The length of a column is divided by itself; one shorter than 1e-30 becomes zero.
struct LowRankOrthogonalize {
  std::int64_t count = 0;  // elements of a column
  std::int64_t rank = 0;
  float* vectors = nullptr;
};

// columns = matrix^T * rows
struct LowRankColumns {
  const LowRankShape* shape = nullptr;
  std::int64_t rank = 0;
  const float* matrix = nullptr;
  const float* rows = nullptr;
  float* columns = nullptr;
};

// residual = matrix - rows * own_columns^T, and then matrix = *loss_scale / *learning_rate * rows *
// columns^T.
struct LowRankDecode {
  const LowRankShape* shape = nullptr;
  std::int64_t rank = 0;
  const float* rows = nullptr;
  const float* own_columns = nullptr;  // of this rank's matrix
  const float* columns = nullptr;      // of the sum of all ranks' matrices
  const float* loss_scale = nullptr;   // as above
  const float* learning_rate = nullptr;
  float* matrix = nullptr;
  float* residual = nullptr;  // null: not wanted
};

// Columns of zeros find nothing in any matrix: each becomes random numbers, uniform in [-1, 1), that depend
// on the key and their places alone.
struct LowRankRevive {
  std::int64_t count = 0;  // elements of a column
  std::int64_t rank = 0;
  PhiloxKey key = {};
  float* vectors = nullptr;
};

}  // namespace lockstep
