// SPDX-License-Identifier: Apache-2.0
//
// Products with factors of few columns, for PowerSGD (Vogels, Karimireddy and Jaggi, "PowerSGD: Practical
// Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithm 1). A matrix M of n
// rows and m columns, whose memory a Layout describes, is approximated by P * Q^T. P has `rank` columns of n
// elements, Q has `rank` columns of m elements. Columns are contiguous: element (i, k) of P is P[k * n + i].
//
// All arithmetic is fp32, except the sums of the orthogonalisation, which are fp64. Values that are not
// finite propagate into the results.
#pragma once

#include <cstdint>
#include <vector>

#include "core/random.h"
#include "core/tensor/layout.h"

namespace lockstep {

// The memory order of a matrix as tiles: memory is divided without gaps into tiles of `slow` times `fast`
// elements, with the fast ones contiguous. One side of the matrix (its rows or its columns) is the fast one.
// Element fast_tile * fast + f of that side and slow_tile * slow + s of the other lies at
// fast_offsets[fast_tile] + slow_offsets[slow_tile] + s * fast + f. Either side is numbered in memory order,
// which may differ from the MatrixView's order.
class LowRankShape {
 public:
  explicit LowRankShape(const MatrixView& view);

  std::int64_t rows() const { return rows_are_fast_ ? fast_count() : slow_count(); }
  std::int64_t columns() const { return rows_are_fast_ ? slow_count() : fast_count(); }
  std::int64_t elements() const { return fast_count() * slow_count(); }
  // Elements of both factors together, per rank of the approximation.
  std::int64_t factor_elements() const { return fast_count() + slow_count(); }

  bool rows_are_fast() const { return rows_are_fast_; }
  std::int64_t fast() const { return fast_; }
  std::int64_t slow() const { return slow_; }
  std::int64_t fast_count() const { return fast_ * static_cast<std::int64_t>(fast_offsets_.size()); }
  std::int64_t slow_count() const { return slow_ * static_cast<std::int64_t>(slow_offsets_.size()); }
  const std::vector<std::int64_t>& fast_offsets() const { return fast_offsets_; }
  const std::vector<std::int64_t>& slow_offsets() const { return slow_offsets_; }
  // True if rows are contiguous, as for all weights on a GPU.
  bool row_major() const { return !rows_are_fast_ && fast_offsets_.size() == 1 && slow_offsets_.size() == 1; }

 private:
  bool rows_are_fast_ = false;
  std::int64_t fast_ = 1;
  std::int64_t slow_ = 1;
  std::vector<std::int64_t> fast_offsets_;
  std::vector<std::int64_t> slow_offsets_;
};

// matrix = *learning_rate * gradient / *loss_scale + residual, in place of the gradient, and rows = matrix *
// columns. Here and below, the shape must outlive the call's work.
struct LowRankRows {
  const LowRankShape* shape = nullptr;
  std::int64_t rank = 0;
  float* matrix = nullptr;               // input: the gradient; output: the matrix
  const float* loss_scale = nullptr;     // in memory of the device; null: 1
  const float* learning_rate = nullptr;  // as loss_scale; above 0
  const float* residual = nullptr;       // null: zeros
  const float* columns = nullptr;        // Q of the previous step
  float* rows = nullptr;                 // P
};

// Modified Gram-Schmidt, twice per column, so that a column that earlier ones nearly span also becomes
// orthogonal to them. Columns are normalised to length 1; one shorter than 1e-30 becomes zero.
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
  const float* loss_scale = nullptr;   // as in LowRankRows
  const float* learning_rate = nullptr;
  float* matrix = nullptr;
  float* residual = nullptr;  // null: not wanted
};

// Replaces each column of zeros, whose products are all zero, by random numbers, uniform in [-1, 1), that
// depend only on the key and their places.
struct LowRankRevive {
  std::int64_t count = 0;  // elements of a column
  std::int64_t rank = 0;
  PhiloxKey key = {};
  float* vectors = nullptr;
};

}  // namespace lockstep
