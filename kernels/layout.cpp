// SPDX-License-Identifier: Apache-2.0
#include "kernels/layout.h"

#include <utility>

#include <fmt/format.h>

namespace lockstep {

Layout::Layout(Shape shape, DType dtype)
    : shape_(shape), dtype_(dtype), bytes_(static_cast<std::size_t>(shape.elements()) * size_of(dtype)) {}

Layout::Layout(Shape shape, DType dtype, std::size_t bytes,
               std::shared_ptr<const detail::LayoutBackend> backend)
    : shape_(shape), dtype_(dtype), bytes_(bytes), backend_(std::move(backend)) {}

std::string Layout::describe() const {
  return fmt::format("{} {} {}", name_of(dtype_), to_string(shape_),
                     backend_ ? backend_->describe() : "plain");
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
