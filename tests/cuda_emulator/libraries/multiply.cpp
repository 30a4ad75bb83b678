// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/multiply.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace lockstep::emulator {
namespace {

constexpr std::int64_t kRows = 6, kColumns = 16;  // the tile that is kept in registers
using Vector [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;
constexpr std::int64_t kLanes = 8;

// A buffer that grows and is freed when its thread ends.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  float* of(std::int64_t count) {
    if (count > count_) {
      std::free(data_);
      data_ = static_cast<float*>(std::malloc(static_cast<std::size_t>(count) * sizeof(float)));
      if (data_ == nullptr) throw std::bad_alloc();
      count_ = count;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  std::int64_t count_ = 0;
};

// Packs `count` rows (or transposed columns) into a group of `step`: for each depth position, the elements of
// the group are adjacent. The missing rows are zeros.
void pack(const float* from, std::int64_t across, std::int64_t along, std::int64_t count, std::int64_t step,
          std::int64_t depth, float* to) {
  if (across == 1 && count == step) {
    for (std::int64_t k = 0; k < depth; ++k, to += step) {
      for (std::int64_t i = 0; i < step; ++i) to[i] = from[k * along + i];
    }
    return;
  }
  for (std::int64_t i = 0; i < step; ++i) {
    if (i < count) {
      for (std::int64_t k = 0; k < depth; ++k) to[k * step + i] = from[i * across + k * along];
    } else {
      for (std::int64_t k = 0; k < depth; ++k) to[k * step + i] = 0;
    }
  }
}

[[gnu::always_inline]] inline void tile(const float* a, const float* b, std::int64_t depth, float* sums) {
  Vector left[kRows] = {}, right[kRows] = {};
  for (std::int64_t k = 0; k < depth; ++k, a += kRows, b += kColumns) {
    const Vector b_left = *reinterpret_cast<const Vector*>(b);
    const Vector b_right = *reinterpret_cast<const Vector*>(b + kLanes);
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kRows; ++i) {
      left[i] += a[i] * b_left;
      right[i] += a[i] * b_right;
    }
  }
#pragma GCC unroll 6
  for (std::int64_t i = 0; i < kRows; ++i) {
    *reinterpret_cast<Vector*>(sums + i * kColumns) = left[i];
    *reinterpret_cast<Vector*>(sums + i * kColumns + kLanes) = right[i];
  }
}

using Tile = void (*)(const float*, const float*, std::int64_t, float*);
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void tile_avx2(const float* a, const float* b, std::int64_t depth, float* sums) {
  tile(a, b, depth, sums);
}
#endif
void tile_anywhere(const float* a, const float* b, std::int64_t depth, float* sums) {
  tile(a, b, depth, sums);
}

Tile fastest_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return tile_avx2;
#endif
  return tile_anywhere;
}

void store(const float* sums, std::int64_t rows, std::int64_t columns, bool add, float* to,
           std::int64_t row_stride) {
  for (std::int64_t i = 0; i < rows; ++i, sums += kColumns, to += row_stride) {
    for (std::int64_t j = 0; j < columns; ++j) to[j] = add ? to[j] + sums[j] : sums[j];
  }
}

std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

void multiply_block(const Product& p, std::int64_t first, std::int64_t depth, bool add) {
  static const Tile fastest = fastest_tile();
  thread_local Scratch packed_a, packed_b;
  const std::int64_t panels = (p.columns + kColumns - 1) / kColumns;
  float* b = packed_b.of(panels * kColumns * depth);
  for (std::int64_t j = 0; j < panels; ++j) {
    const Matrix from = p.b.at(first, j * kColumns);
    pack(from.data, from.column_stride, from.row_stride, least(kColumns, p.columns - j * kColumns), kColumns,
         depth, b + j * kColumns * depth);
  }
  float* a = packed_a.of(kRows * depth);
  float sums[kRows * kColumns];
  for (std::int64_t i = 0; i < p.rows; i += kRows) {
    const std::int64_t rows = least(kRows, p.rows - i);
    const Matrix from = p.a.at(i, first);
    pack(from.data, from.row_stride, from.column_stride, rows, kRows, depth, a);
    for (std::int64_t j = 0; j < panels; ++j) {
      fastest(a, b + j * kColumns * depth, depth, sums);
      store(sums, rows, least(kColumns, p.columns - j * kColumns), add,
            p.result + i * p.row_stride + j * kColumns, p.row_stride);
    }
  }
}

}  // namespace

void multiply(const Product& p) {
  if (p.depth == 0 && !p.add) {
    for (std::int64_t i = 0; i < p.rows; ++i) {
      for (std::int64_t j = 0; j < p.columns; ++j) p.result[i * p.row_stride + j] = 0;
    }
  }
  for (std::int64_t first = 0; first < p.depth; first += p.block) {
    multiply_block(p, first, least(p.block, p.depth - first), p.add || first > 0);
  }
}

}  // namespace lockstep::emulator
