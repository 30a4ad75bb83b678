// SPDX-License-Identifier: Apache-2.0
//
// Tensor: a view of memory owned by a Buffer: address, shape, element type, device. Dense and row-major
// unless a Layout (core/tensor/layout.h) says otherwise. Copying a Tensor copies the view.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/device.h"
#include "core/error.h"
#include "core/tensor/dtype.h"

namespace lockstep {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    CHECK(dims.size() <= kMaxRank, "a shape has at most {} dimensions, not {}", kMaxRank, dims.size());
    for (int i = 0; i < rank_; ++i) {
      CHECK(dims[i] >= 0, "dimension {} is {}, which is negative", i, dims[i]);
      dims_[i] = dims[i];
    }
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[i]; }
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  // Number of elements: the product of the dimensions, 1 for rank 0.
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= dims_[i];
    return product;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_ = {};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[64, 3, 7, 7]"

struct Tensor {
  void* data = nullptr;
  Shape shape = {};
  DType dtype = DType::f32;
  Device device = {};

  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }

  // The elements, in host memory. Throws if T does not match the type.
  template <typename T>
  std::span<T> as() const {
    CHECK(dtype == dtype_of<T>, "tensor holds {}, not {}", name_of(dtype), name_of(dtype_of<T>));
    return {static_cast<T*>(data), static_cast<std::size_t>(elements())};
  }
};

}  // namespace lockstep
