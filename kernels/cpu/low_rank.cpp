// SPDX-License-Identifier: Apache-2.0
//
// Factors have few columns, so every product is one pass over the matrix and is bound by memory. Vectors run
// along the fast side of the matrix. A sum over the fast side keeps one vector of partial sums per element of
// the slow side and adds its lanes at the end; a sum over the slow side keeps vectors in registers. No sum
// depends on the assignment of threads.
#include "kernels/low_rank.h"

#include <algorithm>

#include "core/system/processors.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/lanes.h"
#include "kernels/low_rank_functors.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

using Wide = Lanes<16>::Float;
constexpr std::int64_t kWide = 16;
constexpr std::int64_t kSlowBlock = 32;         // elements of the slow side summed in one block
constexpr std::int64_t kFastBlock = 4 * kWide;  // of the fast side
constexpr std::int64_t kMostColumns = 4;        // of a factor, in one pass

// Source of matrix elements: the stored matrix.
struct Stored {
  const float* matrix;
  template <typename V>
  INLINE V at(std::int64_t i) const {
    return load<V>(matrix + i);
  }
};
// Source of matrix elements: gradient and residual, whose sum replaces the gradient in memory.
struct Compensated {
  Compensate compensate;
  float* matrix;
  const float* residual;
  template <typename V>
  INLINE V at(std::int64_t i) const {
    const V value = compensate(load<V>(matrix + i), load<V>(residual + i));
    store(matrix + i, value);
    return value;
  }
};
struct Unscaled {
  Compensate compensate;
  float* matrix;
  template <typename V>
  INLINE V at(std::int64_t i) const {
    const V value = compensate(load<V>(matrix + i), V{});
    store(matrix + i, value);
    return value;
  }
};

INLINE float sum_of_lanes(const Wide& lanes) {
  float sums[kWide];
  store(sums, lanes);
  for (std::int64_t half = kWide / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// One piece of a product: reads `factor` and writes `product`.
struct Piece {
  const LowRankShape* shape;
  const float* factor;     // of the summed side
  float* product;          // of the other side
  std::int64_t tile = 0;   // on the product's side
  std::int64_t begin = 0;  // elements of that tile
  std::int64_t count = 0;
};

// product[slow] = sum over fast
template <int kColumns, typename Source>
INLINE void sum_over_fast(const Piece& piece, const Source& source) {
  const LowRankShape& shape = *piece.shape;
  const std::int64_t fast = shape.fast(), all_fast = shape.fast_count(), all_slow = shape.slow_count();
  const std::int64_t tiles = static_cast<std::int64_t>(shape.fast_offsets().size());
  const std::int64_t* offsets = shape.fast_offsets().data();
  const std::int64_t corner = shape.slow_offsets()[static_cast<std::size_t>(piece.tile)] + piece.begin * fast;
  Wide sums[kSlowBlock][kColumns] = {};
  float rests[kSlowBlock][kColumns] = {};
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const float* factor = piece.factor + tile * fast;
    for (std::int64_t s = 0; s < piece.count; ++s) {
      const std::int64_t first = corner + offsets[tile] + s * fast;
      Wide sum[kColumns];
      for (int k = 0; k < kColumns; ++k) sum[k] = sums[s][k];
      std::int64_t f = 0;
      for (; f + kWide <= fast; f += kWide) {
        const Wide value = source.template at<Wide>(first + f);
        for (int k = 0; k < kColumns; ++k) sum[k] += value * load<Wide>(factor + k * all_fast + f);
      }
      for (int k = 0; k < kColumns; ++k) sums[s][k] = sum[k];
      for (; f < fast; ++f) {
        const float value = source.template at<float>(first + f);
        for (int k = 0; k < kColumns; ++k) rests[s][k] += value * factor[k * all_fast + f];
      }
    }
  }
  float* product = piece.product + piece.tile * shape.slow() + piece.begin;
  for (std::int64_t s = 0; s < piece.count; ++s) {
    for (int k = 0; k < kColumns; ++k) product[k * all_slow + s] = sum_of_lanes(sums[s][k]) + rests[s][k];
  }
}

// product[fast] = sum over slow, for kVectors of V.
template <typename V, int kVectors, int kColumns, typename Source>
INLINE void sum_over_slow_for(const Piece& piece, const Source& source, std::int64_t begin) {
  constexpr std::int64_t kLanes = sizeof(V) / sizeof(float);
  const LowRankShape& shape = *piece.shape;
  const std::int64_t fast = shape.fast(), slow = shape.slow();
  const std::int64_t all_fast = shape.fast_count(), all_slow = shape.slow_count();
  const std::int64_t tiles = static_cast<std::int64_t>(shape.slow_offsets().size());
  const std::int64_t* offsets = shape.slow_offsets().data();
  const std::int64_t corner = shape.fast_offsets()[static_cast<std::size_t>(piece.tile)] + begin;
  V sums[kVectors][kColumns] = {};
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const float* factor = piece.factor + tile * slow;
    for (std::int64_t s = 0; s < slow; ++s) {
      const std::int64_t first = corner + offsets[tile] + s * fast;
      for (int v = 0; v < kVectors; ++v) {
        const V value = source.template at<V>(first + v * kLanes);
        for (int k = 0; k < kColumns; ++k) sums[v][k] += value * factor[k * all_slow + s];
      }
    }
  }
  float* product = piece.product + piece.tile * fast + begin;
  for (int v = 0; v < kVectors; ++v) {
    for (int k = 0; k < kColumns; ++k) store(product + k * all_fast + v * kLanes, sums[v][k]);
  }
}

template <int kColumns, typename Source>
INLINE void sum_over_slow(const Piece& piece, const Source& source) {
  std::int64_t begin = piece.begin;
  const std::int64_t end = piece.begin + piece.count;
  for (; begin + kFastBlock <= end; begin += kFastBlock)
    sum_over_slow_for<Wide, kFastBlock / kWide, kColumns>(piece, source, begin);
  for (; begin + kWide <= end; begin += kWide) sum_over_slow_for<Wide, 1, kColumns>(piece, source, begin);
  for (; begin < end; ++begin) sum_over_slow_for<float, 1, kColumns>(piece, source, begin);
}

template <int kColumns, typename Source>
INLINE void sum_piece(const Piece& piece, bool over_fast, const Source& source) {
  if (over_fast) {
    sum_over_fast<kColumns>(piece, source);
  } else {
    sum_over_slow<kColumns>(piece, source);
  }
}

template <typename Source>
INLINE void sum_columns(const Piece& piece, std::int64_t columns, bool over_fast, const Source& source) {
  if (columns >= 4) {
    sum_piece<4>(piece, over_fast, source);
  } else if (columns == 3) {
    sum_piece<3>(piece, over_fast, source);
  } else if (columns == 2) {
    sum_piece<2>(piece, over_fast, source);
  } else {
    sum_piece<1>(piece, over_fast, source);
  }
}

// The product of a piece for all columns of the factors. The first pass converts the gradient in place, so
// later passes read the stored matrix.
template <typename Source>
INLINE void multiply_piece(Piece piece, std::int64_t rank, bool over_fast, const float* matrix,
                           const Source& source) {
  const LowRankShape& shape = *piece.shape;
  const std::int64_t summed = over_fast ? shape.fast_count() : shape.slow_count();
  const std::int64_t kept = over_fast ? shape.slow_count() : shape.fast_count();
  sum_columns(piece, rank, over_fast, source);
  for (std::int64_t k = kMostColumns; k < rank; k += kMostColumns) {
    piece.factor += kMostColumns * summed;
    piece.product += kMostColumns * kept;
    sum_columns(piece, rank - k, over_fast, Stored{matrix});
  }
}

void rows_piece(const LowRankRows& a, const Piece& piece) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    const bool over_fast = !a.shape->rows_are_fast();
    const Compensate compensate{.factor = 1.0f / gradient_scale(a)};
    if (a.residual != nullptr) {
      multiply_piece(piece, a.rank, over_fast, a.matrix, Compensated{compensate, a.matrix, a.residual});
    } else {
      multiply_piece(piece, a.rank, over_fast, a.matrix, Unscaled{compensate, a.matrix});
    }
  });
}

void columns_piece(const LowRankColumns& a, const Piece& piece) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    multiply_piece(piece, a.rank, a.shape->rows_are_fast(), a.matrix, Stored{a.matrix});
  });
}

// The factors of both sides for one element of the slow side.
struct Factors {
  const float* fast;
  const float* slow;
  std::int64_t fast_count;
  std::int64_t slow_count;
};

// The sum over k of slow[k] * fast[k][f].
template <typename V>
INLINE V approximation(const Factors& factors, std::int64_t rank, std::int64_t f) {
  V sum = load<V>(factors.fast + f) * factors.slow[0];
  for (std::int64_t k = 1; k < rank; ++k)
    sum += load<V>(factors.fast + k * factors.fast_count + f) * factors.slow[k * factors.slow_count];
  return sum;
}

// One contiguous run: one element of the slow side, one tile of the fast side.
template <bool kKeeps>
INLINE void decode_run(const Factors& own, const Factors& all, std::int64_t rank, float scale,
                       std::int64_t count, float* matrix, float* residual) {
  std::int64_t f = 0;
  const auto decode = [&]<typename V>(V) __attribute__((always_inline)) {
    if constexpr (kKeeps) store(residual + f, load<V>(matrix + f) - approximation<V>(own, rank, f));
    store(matrix + f, approximation<V>(all, rank, f) * scale);
  };
  for (; f + kWide <= count; f += kWide) decode(Wide());
  for (; f < count; ++f) decode(float());
}

// The slow elements [begin, begin + count) of one tile of each side.
template <bool kKeeps>
INLINE void decode_block(const LowRankDecode& a, std::int64_t fast_tile, std::int64_t slow_tile,
                         std::int64_t begin, std::int64_t count) {
  const LowRankShape& shape = *a.shape;
  const std::int64_t fast = shape.fast();
  const float scale = gradient_scale(a);
  const bool rows_are_fast = shape.rows_are_fast();
  for (std::int64_t s = begin; s < begin + count; ++s) {
    const std::int64_t f = fast_tile * fast, place = slow_tile * shape.slow() + s;
    const auto factors = [&](const float* columns) __attribute__((always_inline)) {
      return Factors{.fast = (rows_are_fast ? a.rows : columns) + f,
                     .slow = (rows_are_fast ? columns : a.rows) + place,
                     .fast_count = shape.fast_count(),
                     .slow_count = shape.slow_count()};
    };
    const std::int64_t first = shape.fast_offsets()[static_cast<std::size_t>(fast_tile)] +
                               shape.slow_offsets()[static_cast<std::size_t>(slow_tile)] + s * fast;
    const Factors own = factors(a.own_columns), all = factors(a.columns);
    float* residual = kKeeps ? a.residual + first : nullptr;
    if (a.rank == 1) {
      decode_run<kKeeps>(own, all, 1, scale, fast, a.matrix + first, residual);
    } else if (a.rank == 2) {
      decode_run<kKeeps>(own, all, 2, scale, fast, a.matrix + first, residual);
    } else {
      decode_run<kKeeps>(own, all, a.rank, scale, fast, a.matrix + first, residual);
    }
  }
}

void decode_piece(const LowRankDecode& a, std::int64_t fast_tile, std::int64_t slow_tile, std::int64_t begin,
                  std::int64_t count) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    if (a.residual != nullptr) {
      decode_block<true>(a, fast_tile, slow_tile, begin, count);
    } else {
      decode_block<false>(a, fast_tile, slow_tile, begin, count);
    }
  });
}

// Calls run(piece) for blocks of the side that is not summed.
template <typename Run>
void for_each_piece(const LowRankShape& shape, bool over_fast, const float* factor, float* product, Run run) {
  const std::int64_t extent = over_fast ? shape.slow() : shape.fast();
  const std::int64_t block = std::min(extent, over_fast ? kSlowBlock : kFastBlock);
  const std::int64_t blocks = (extent + block - 1) / block;
  const std::size_t tiles = over_fast ? shape.slow_offsets().size() : shape.fast_offsets().size();
  deal(blocks * static_cast<std::int64_t>(tiles), [&](std::int64_t i) {
    const std::int64_t begin = i % blocks * block;
    run(Piece{.shape = &shape,
              .factor = factor,
              .product = product,
              .tile = i / blocks,
              .begin = begin,
              .count = std::min(block, extent - begin)});
  });
}

double dot(std::int64_t count, const float* a, const float* b) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

void orthogonalize(const LowRankOrthogonalize& a) {
  for (std::int64_t k = 0; k < a.rank; ++k) {
    float* vector = a.vectors + k * a.count;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t j = 0; j < k; ++j) {
        const float* other = a.vectors + j * a.count;
        const auto along = static_cast<float>(dot(a.count, vector, other));
#pragma omp simd
        for (std::int64_t i = 0; i < a.count; ++i) vector[i] -= along * other[i];
      }
      const auto scale = static_cast<float>(UnitScale()(dot(a.count, vector, vector)));
#pragma omp simd
      for (std::int64_t i = 0; i < a.count; ++i) vector[i] *= scale;
    }
  }
}

void revive(const LowRankRevive& a) {
  for (std::int64_t k = 0; k < a.rank; ++k) {
    float* vector = a.vectors + k * a.count;
    if (std::any_of(vector, vector + a.count, [](float value) { return value != 0; })) continue;
    for (std::int64_t i = 0; i < a.count; ++i) vector[i] = RandomStart{a.key}(k, i);
  }
}

}  // namespace

void CpuBackend::low_rank_rows(Stream& stream, const LowRankRows& arguments) {
  in_order(stream, [a = arguments] {
    for_each_piece(*a.shape, !a.shape->rows_are_fast(), a.columns, a.rows,
                   [&a](const Piece& piece) { rows_piece(a, piece); });
  });
}

void CpuBackend::low_rank_orthogonalize(Stream& stream, const LowRankOrthogonalize& arguments) {
  in_order(stream, [a = arguments] { orthogonalize(a); });
}

void CpuBackend::low_rank_columns(Stream& stream, const LowRankColumns& arguments) {
  in_order(stream, [a = arguments] {
    for_each_piece(*a.shape, a.shape->rows_are_fast(), a.rows, a.columns,
                   [&a](const Piece& piece) { columns_piece(a, piece); });
  });
}

void CpuBackend::low_rank_decode(Stream& stream, const LowRankDecode& arguments) {
  in_order(stream, [a = arguments] {
    const LowRankShape& shape = *a.shape;
    constexpr std::int64_t kBlock = 64;
    const std::int64_t blocks = (shape.slow() + kBlock - 1) / kBlock;
    const auto slow_tiles = static_cast<std::int64_t>(shape.slow_offsets().size());
    const auto fast_tiles = static_cast<std::int64_t>(shape.fast_offsets().size());
    deal(fast_tiles * slow_tiles * blocks, [&](std::int64_t i) {
      const std::int64_t begin = i % blocks * kBlock, tile = i / blocks;
      decode_piece(a, tile / slow_tiles, tile % slow_tiles, begin, std::min(kBlock, shape.slow() - begin));
    });
  });
}

void CpuBackend::low_rank_revive(Stream& stream, const LowRankRevive& arguments) {
  in_order(stream, [a = arguments] { revive(a); });
}

}  // namespace lockstep
