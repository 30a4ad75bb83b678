// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/layout.h"

#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep {
namespace {

using Axis = MatrixView::Axis;

std::vector<Axis> merged(const std::vector<Axis>& axes) {
  std::vector<Axis> result;
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (!result.empty() && result.back().stride == axis.extent * axis.stride) {
      result.back() = {result.back().extent * axis.extent, axis.stride};
    } else {
      result.push_back(axis);
    }
  }
  return result;
}

std::int64_t product(const std::vector<Axis>& axes) {
  std::int64_t extent = 1;
  for (const Axis& axis : axes) extent *= axis.extent;
  return extent;
}

}  // namespace

MatrixView::MatrixView(const std::vector<Axis>& rows, const std::vector<Axis>& columns)
    : row_axes_(merged(rows)),
      column_axes_(merged(columns)),
      rows_(product(rows)),
      columns_(product(columns)) {}

std::int64_t MatrixView::offset(const std::vector<Axis>& axes, std::int64_t index) {
  std::int64_t elements = 0;
  for (std::size_t i = axes.size(); i-- > 0;) {
    elements += index % axes[i].extent * axes[i].stride;
    index /= axes[i].extent;
  }
  return elements;
}

Layout::Layout(Shape shape, DType dtype)
    : shape_(shape), dtype_(dtype), bytes_(static_cast<std::size_t>(shape.elements()) * size_of(dtype)) {}

Layout::Layout(Shape shape, DType dtype, std::size_t bytes,
               std::shared_ptr<const detail::LayoutBackend> backend)
    : shape_(shape), dtype_(dtype), bytes_(bytes), backend_(std::move(backend)) {}

std::string Layout::describe() const {
  return fmt::format("{} {} {}", name_of(dtype_), to_string(shape_),
                     backend_ ? backend_->describe() : "plain");
}

MatrixView Layout::matrix_view() const {
  if (backend_) {
    MatrixView view = backend_->matrix_view(shape_);
    CHECK(view.rows() * view.columns() == physical_elements(), "{} does not fit a matrix of {} by {}",
          describe(), view.rows(), view.columns());
    return view;
  }
  const std::int64_t rows = shape_.rank() == 0 ? 1 : shape_[0];
  const std::int64_t columns = rows == 0 ? 0 : shape_.elements() / rows;
  return MatrixView({{rows, columns}}, {{columns, 1}});
}

Layout Layout::as_type(DType dtype) const {
  if (dtype == dtype_) return *this;
  const std::size_t bytes = static_cast<std::size_t>(physical_elements()) * size_of(dtype);
  return backend_ ? Layout(shape_, dtype, bytes, backend_->as_type(dtype)) : Layout(shape_, dtype);
}

bool Layout::operator==(const Layout& other) const {
  if (shape_ != other.shape_ || dtype_ != other.dtype_ || bytes_ != other.bytes_) return false;
  if (!backend_ || !other.backend_) return backend_ == other.backend_;
  return backend_->equals(*other.backend_);
}

}  // namespace lockstep
