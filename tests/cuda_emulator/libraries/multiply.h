// SPDX-License-Identifier: Apache-2.0
//
// Products of float matrices, summed in fp32 in an order that the caller determines: the blocks of a sum are
// added in sequence, and so are the products within a block. Different orders give different last bits, like
// different GPU algorithms. All memory belongs to one thread; compiled for speed, without sanitizers.
#pragma once

#include <cstdint>

namespace lockstep::emulator {

// Element (i, j) is data[i * row_stride + j * column_stride].
struct Matrix {
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride;

  Matrix at(std::int64_t row, std::int64_t column) const {
    return {data + row * row_stride + column * column_stride, row_stride, column_stride};
  }
};

struct Product {
  std::int64_t rows, columns, depth;  // a is rows x depth, b is depth x columns
  Matrix a, b;
  float* result;  // row-major, rows row_stride apart
  std::int64_t row_stride;
  std::int64_t block = 256;  // depth that is summed before it is added to the result
  bool add = false;          // add to the previous contents of the result
};
void multiply(const Product& product);

}  // namespace lockstep::emulator
