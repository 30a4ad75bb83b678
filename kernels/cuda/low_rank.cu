// SPDX-License-Identifier: Apache-2.0
//
// Bytes of memory traffic per element of the matrix: the rows' product reads gradient and residual and writes
// the matrix (12), the columns' product reads it (4), decoding reads it and writes matrix and residual (12).
// Adjacent threads process adjacent columns. Factors are small and stay in the L2 cache. All sums are split
// into the same parts on every GPU.
#include <type_traits>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/reduce.h"
#include "kernels/low_rank_functors.h"

namespace lockstep {
namespace {

constexpr int kMostColumns = 4;  // of a factor, per pass

struct Product {
  std::int64_t rows;
  std::int64_t columns;
  float* matrix;
  const float* factor;  // of the summed side
  float* product;       // of the other side
};

// One block per row. With kGradient it first converts the gradient to the matrix, in place.
template <int kColumns, bool kGradient>
__global__ void __launch_bounds__(kBlockThreads) rows_kernel(Product a, LowRankRows all) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * a.columns;
  Compensate compensate;
  if constexpr (kGradient) compensate.factor = 1.0f / gradient_scale(all);
  float sums[kColumns] = {};
  for (std::int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
    float value = a.matrix[begin + i];
    if constexpr (kGradient) {
      value = compensate(value, all.residual == nullptr ? 0.0f : all.residual[begin + i]);
      a.matrix[begin + i] = value;
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sums[k] += value * a.factor[k * a.columns + i];
  }
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    const float sum = block_sum(sums[k]);
    if (threadIdx.x == 0) a.product[k * a.rows + blockIdx.x] = sum;
  }
}

// One block per kWarpThreads columns; each of its warps processes every kWarps-th row.
template <int kColumns>
__global__ void __launch_bounds__(kBlockThreads) columns_kernel(Product a) {
  constexpr int kWarps = kBlockThreads / kWarpThreads;
  __shared__ float partial[kWarps][kColumns][kWarpThreads];
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const std::int64_t column = std::int64_t{blockIdx.x} * kWarpThreads + lane;
  float sums[kColumns] = {};
  if (column < a.columns) {
    for (std::int64_t row = warp; row < a.rows; row += kWarps) {
      const float value = a.matrix[row * a.columns + column];
#pragma unroll
      for (int k = 0; k < kColumns; ++k) sums[k] += value * a.factor[k * a.rows + row];
    }
  }
#pragma unroll
  for (int k = 0; k < kColumns; ++k) partial[warp][k][lane] = sums[k];
  __syncthreads();
  if (warp >= kColumns || column >= a.columns) return;
  float sum = 0;
  for (int other = 0; other < kWarps; ++other) sum += partial[other][warp][lane];
  a.product[warp * a.columns + column] = sum;
}

__device__ inline float approximation(const LowRankDecode& a, std::int64_t rows, std::int64_t columns,
                                      const float* factor, std::int64_t row, std::int64_t column) {
  float sum = 0;
  for (std::int64_t k = 0; k < a.rank; ++k) sum += a.rows[k * rows + row] * factor[k * columns + column];
  return sum;
}

__global__ void __launch_bounds__(kMostBlockThreads)
    decode_kernel(LowRankDecode a, std::int64_t rows, std::int64_t columns) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  const std::int64_t row = i / columns, column = i % columns;
  if (a.residual != nullptr)
    a.residual[i] = a.matrix[i] - approximation(a, rows, columns, a.own_columns, row, column);
  const float scale = gradient_scale(a);
  a.matrix[i] = scale * approximation(a, rows, columns, a.columns, row, column);
}

__device__ inline double block_dot(std::int64_t count, const float* a, const float* b) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return block_sum(sum);
}

// One block. A thread reads and writes only its own elements, so no barrier is needed.
__global__ void __launch_bounds__(kBlockThreads) orthogonalize_kernel(LowRankOrthogonalize a) {
  for (std::int64_t k = 0; k < a.rank; ++k) {
    float* vector = a.vectors + k * a.count;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t j = 0; j < k; ++j) {
        const float* other = a.vectors + j * a.count;
        const auto along = static_cast<float>(block_dot(a.count, vector, other));
        for (std::int64_t i = threadIdx.x; i < a.count; i += blockDim.x) vector[i] -= along * other[i];
      }
      const auto scale = static_cast<float>(UnitScale()(block_dot(a.count, vector, vector)));
      for (std::int64_t i = threadIdx.x; i < a.count; i += blockDim.x) vector[i] *= scale;
    }
  }
}

// One block per column.
__global__ void __launch_bounds__(kBlockThreads) revive_kernel(LowRankRevive a) {
  const std::int64_t k = blockIdx.x;
  float* vector = a.vectors + k * a.count;
  bool found = false;
  for (std::int64_t i = threadIdx.x; i < a.count; i += blockDim.x) found |= vector[i] != 0;
  if (__syncthreads_or(found ? 1 : 0) != 0) return;
  const RandomStart start{a.key};
  for (std::int64_t i = threadIdx.x; i < a.count; i += blockDim.x) vector[i] = start(k, i);
}

void check_shape(const LowRankShape& shape) {
  CHECK(shape.row_major(), "the matrix of {} by {} must be row-major", shape.rows(), shape.columns());
}

// Calls run(number of columns as a constant, first column) for all columns of the factors.
template <typename Run>
void for_columns(std::int64_t rank, Run run) {
  for (std::int64_t first = 0; first < rank; first += kMostColumns) {
    const std::int64_t left = rank - first;
    if (left >= 4) {
      run(std::integral_constant<int, 4>(), first);
    } else if (left == 3) {
      run(std::integral_constant<int, 3>(), first);
    } else if (left == 2) {
      run(std::integral_constant<int, 2>(), first);
    } else {
      run(std::integral_constant<int, 1>(), first);
    }
  }
}

}  // namespace

void cuda_low_rank_rows(Stream& stream, const LowRankRows& a) {
  check_shape(*a.shape);
  const std::int64_t rows = a.shape->rows(), columns = a.shape->columns();
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(kBlockThreads)};
  for_columns(a.rank, [&](auto count, std::int64_t first) {
    const Product product{.rows = rows,
                          .columns = columns,
                          .matrix = a.matrix,
                          .factor = a.columns + first * columns,
                          .product = a.rows + first * rows};
    constexpr int kColumns = decltype(count)::value;
    if (first == 0) {
      launch(rows_kernel<kColumns, true>, shape, stream, product, a);
    } else {
      launch(rows_kernel<kColumns, false>, shape, stream, product, a);
    }
  });
}

void cuda_low_rank_orthogonalize(Stream& stream, const LowRankOrthogonalize& a) {
  launch(orthogonalize_kernel, {.grid = dim3(1), .block = dim3(kBlockThreads)}, stream, a);
}

void cuda_low_rank_columns(Stream& stream, const LowRankColumns& a) {
  check_shape(*a.shape);
  const std::int64_t rows = a.shape->rows(), columns = a.shape->columns();
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(ceil_div(columns, kWarpThreads))),
                          .block = dim3(kBlockThreads)};
  for_columns(a.rank, [&](auto count, std::int64_t first) {
    const Product product{.rows = rows,
                          .columns = columns,
                          .matrix = const_cast<float*>(a.matrix),
                          .factor = a.rows + first * rows,
                          .product = a.columns + first * columns};
    launch(columns_kernel<decltype(count)::value>, shape, stream, product);
  });
}

void cuda_low_rank_decode(Stream& stream, const LowRankDecode& a) {
  check_shape(*a.shape);
  const int threads = block_threads();
  launch(decode_kernel,
         {.grid = dim3(static_cast<unsigned>(ceil_div(a.shape->elements(), threads))),
          .block = dim3(static_cast<unsigned>(threads))},
         stream, a, a.shape->rows(), a.shape->columns());
}

void cuda_low_rank_revive(Stream& stream, const LowRankRevive& a) {
  launch(revive_kernel, {.grid = dim3(static_cast<unsigned>(a.rank)), .block = dim3(kBlockThreads)}, stream,
         a);
}

}  // namespace lockstep
