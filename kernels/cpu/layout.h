// SPDX-License-Identifier: Apache-2.0
//
// Layouts of the CPU: a Layout's backend part is oneDNN's description of memory, present only if the memory
// is not dense and row-major. oneDNN's dimensions may differ from the Layout's shape (groups as a separate
// dimension, a linear layer's features as channels, height and width), as long as row-major memory is the
// same for both.
#pragma once

#include <string>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/tensor/layout.h"

namespace lockstep {

struct CpuLayout final : detail::LayoutBackend {
  explicit CpuLayout(const dnnl::memory::desc& memory);

  MatrixView matrix_view(const Shape& shape) const override;
  bool equals(const detail::LayoutBackend& other) const override;
  std::string describe() const override { return description; }
  std::shared_ptr<const detail::LayoutBackend> as_type(DType dtype) const override;

  dnnl::memory::desc desc;
  std::string description;
};

dnnl::memory::data_type to_dnnl(DType dtype);
DType to_dtype(dnnl::memory::data_type type);
dnnl::memory::desc plain_desc(const dnnl::memory::dims& dims, DType dtype);
// True if the described memory is dense and row-major.
bool is_plain(const dnnl::memory::desc& desc);

// desc describes the shape's elements in the shape's order; row-major memory becomes a plain Layout.
Layout to_layout(const Shape& shape, const dnnl::memory::desc& desc);
// A plain layout's desc has the dimensions of its shape.
dnnl::memory::desc to_desc(const Layout& layout);

}  // namespace lockstep
