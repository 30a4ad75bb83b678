// SPDX-License-Identifier: Apache-2.0
//
// Layout: how a logical tensor lies in memory. Kernels choose layouts when they are planned (channels blocked
// by 16, say); everybody else passes them on unread. A layout with no backend part is plain: dense and
// row-major, activations as [N, C, H, W], convolution weights as [O, I/groups, H, W], linear weights as [O,
// I].
//
// Physical memory may be larger than the logical tensor (padded channels). Padding holds zeros and stays zero
// under every kernel, so elementwise work may run over all physical elements.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/tensor.h"

namespace lockstep {

namespace detail {
struct LayoutBackend {  // a backend's own description, shared and immutable
  virtual ~LayoutBackend() = default;
  virtual bool equals(const LayoutBackend& other) const = 0;
  virtual std::string describe() const = 0;  // equal on two ranks exactly if the layouts are
  virtual std::shared_ptr<const LayoutBackend> as_type(DType dtype) const = 0;
};
}  // namespace detail

class Layout {
 public:
  Layout() = default;
  // Plain.
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
