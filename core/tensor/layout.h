// SPDX-License-Identifier: Apache-2.0
//
// Layout: how a logical tensor lies in memory. Kernels choose layouts when they are planned (channels blocked
// by 16, for example); all other code passes them on without inspecting them. A layout without a backend part
// is plain: dense and row-major, activations as [N, C, H, W], convolution weights as [O, I/groups, H, W],
// linear weights as [O, I].
//
// Physical memory may be larger than the logical tensor (padded channels). Padding holds zeros and stays zero
// under every kernel, so elementwise kernels may run over all physical elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace lockstep {

// Physical memory as a matrix: element (r, c) lies row_offset(r) + column_offset(c) elements from the
// beginning, and every physical element belongs to the matrix. The offsets of all layouts split like this, so
// products with the matrix and its transpose work on it in place: with one table of offsets for rows and one
// for columns, or axis by axis.
//
// Rows are the first dimension of the shape (for weights the output channels; with groups, the first group's
// first). Columns are all other dimensions in row-major order: [O, I, H, W] is the matrix [O, I * H * W] in
// every blocking. A layout that pads channels has rows or columns of padding after those of the padded
// dimension (or group). They hold zeros, which stay zero under products.
class MatrixView {
 public:
  // One factor of the row or column index; stride is in elements of memory. Axes are ordered from the most to
  // the least significant.
  struct Axis {
    std::int64_t extent = 1;
    std::int64_t stride = 1;
    bool operator==(const Axis&) const = default;
  };
  // The most significant axis comes first.
  MatrixView(const std::vector<Axis>& rows, const std::vector<Axis>& columns);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t row_offset(std::int64_t row) const { return offset(row_axes_, row); }
  std::int64_t column_offset(std::int64_t column) const { return offset(column_axes_, column); }
  // The smallest number of axes: adjacent axes that form one longer stride are merged.
  const std::vector<Axis>& row_axes() const { return row_axes_; }
  const std::vector<Axis>& column_axes() const { return column_axes_; }

 private:
  static std::int64_t offset(const std::vector<Axis>& axes, std::int64_t index);

  std::vector<Axis> row_axes_;
  std::vector<Axis> column_axes_;
  std::int64_t rows_;
  std::int64_t columns_;
};

namespace detail {
struct LayoutBackend {  // the backend's description, shared and immutable
  virtual ~LayoutBackend() = default;
  virtual MatrixView matrix_view(const Shape& shape) const = 0;
  virtual bool equals(const LayoutBackend& other) const = 0;
  virtual std::string describe() const = 0;  // equal on two ranks if and only if the layouts are equal
  virtual std::shared_ptr<const LayoutBackend> as_type(DType dtype) const = 0;
};
}  // namespace detail

class Layout {
 public:
  Layout() = default;
  // A plain layout.
  Layout(Shape shape, DType dtype);
  Layout(Shape shape, DType dtype, std::size_t bytes, std::shared_ptr<const detail::LayoutBackend> backend);

  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  // Physical size.
  std::size_t bytes() const { return bytes_; }
  std::int64_t physical_elements() const { return static_cast<std::int64_t>(bytes_ / size_of(dtype_)); }
  bool is_plain() const { return backend_ == nullptr; }
  const detail::LayoutBackend* backend() const { return backend_.get(); }
  std::string describe() const;
  // The matrix of all physical elements.
  MatrixView matrix_view() const;
  // The same arrangement of elements of another type.
  Layout as_type(DType dtype) const;
  bool operator==(const Layout& other) const;

 private:
  Shape shape_;
  DType dtype_ = DType::f32;
  std::size_t bytes_ = 0;
  std::shared_ptr<const detail::LayoutBackend> backend_;
};

}  // namespace lockstep
