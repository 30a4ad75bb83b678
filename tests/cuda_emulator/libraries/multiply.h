// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices of floats, summed in fp32 in an order that the caller fixes: blocks of the sum one
// after the other, within a block one product after the other. Other orders give other last bits, as other
// algorithms of a GPU do. Memory is one thread's; compiled for speed, without sanitizers.
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
  std::int64_t block = 256;  // of depth, that is summed before it is added to the result
  bool add = false;          // to what the result holds
};
void multiply(const Product& product);

}  // namespace lockstep::emulator
