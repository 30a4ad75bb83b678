// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/layout.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {
namespace {

dnnl::memory::format_tag row_major(std::size_t rank) {
  using Tag = dnnl::memory::format_tag;
  constexpr Tag tags[] = {Tag::a, Tag::ab, Tag::abc, Tag::abcd, Tag::abcde};
  CHECK(rank >= 1 && rank <= std::size(tags), "oneDNN kernels take 1 to 5 dimensions, not {}", rank);
  return tags[rank - 1];
}

void require_blocked(const dnnl::memory::desc& desc) {
  CHECK(onednn::is_blocked(desc), "tensors cannot be kept in this oneDNN layout");
}

// Padded sizes, strides and blocks, like oneDNN's "aBcd16b"; a dimension of one element has no relevant
// stride.
std::string describe_desc(const dnnl::memory::desc& desc) {
  require_blocked(desc);
  const dnnl::memory::dims padded = onednn::padded_dims_of(desc);
  const dnnl::memory::dims strides = onednn::strides_of(desc);
  std::string text;
  for (std::size_t i = 0; i < padded.size(); ++i) {
    text += fmt::format("{}{}{}", i == 0 ? "" : " ", padded[i],
                        padded[i] == 1 ? std::string() : fmt::format(":{}", strides[i]));
  }
  const char* space = " ";
  for (const auto& [dimension, elements] : onednn::blocks_of(desc)) {
    text += fmt::format("{}{}{}", std::exchange(space, ""), elements, static_cast<char>('a' + dimension));
  }
  return "blocked " + text;
}

}  // namespace

CpuLayout::CpuLayout(const dnnl::memory::desc& memory) : desc(memory), description(describe_desc(memory)) {}

// Weights of several groups have one dimension more than their shape: the groups, before the outputs of a
// group.
MatrixView CpuLayout::matrix_view(const Shape& shape) const {
  const dnnl::memory::dims padded = onednn::padded_dims_of(desc);
  const dnnl::memory::dims strides = onednn::strides_of(desc);
  const auto blocks = onednn::blocks_of(desc);
  const std::size_t leading = static_cast<int>(padded.size()) == shape.rank() + 1 ? 2 : 1;
  std::vector<MatrixView::Axis> rows, columns;
  for (std::size_t d = 0; d < padded.size(); ++d) {
    std::vector<MatrixView::Axis>& axes = d < leading ? rows : columns;
    const std::size_t outer = axes.size();
    axes.push_back({padded[d], strides[d]});
    std::int64_t stride = 1;  // of inner blocks, from the last
    for (std::size_t k = blocks.size(); k-- > 0; stride *= blocks[k].second) {
      const auto& [dimension, elements] = blocks[k];
      if (static_cast<std::size_t>(dimension) != d) continue;
      axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(outer) + 1, {elements, stride});
      axes[outer].extent /= elements;
    }
  }
  return MatrixView(rows, columns);
}

bool CpuLayout::equals(const detail::LayoutBackend& other) const {
  const auto* cpu = dynamic_cast<const CpuLayout*>(&other);
  return cpu != nullptr && cpu->description == description;
}

std::shared_ptr<const detail::LayoutBackend> CpuLayout::as_type(DType dtype) const {
  return std::make_shared<const CpuLayout>(onednn::with_type(desc, to_dnnl(dtype)));
}

dnnl::memory::data_type to_dnnl(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return dnnl::memory::data_type::f32;
    case DType::f16:
      return dnnl::memory::data_type::f16;
    case DType::bf16:
      return dnnl::memory::data_type::bf16;
    case DType::u8:
      return dnnl::memory::data_type::u8;
    case DType::i32:
      return dnnl::memory::data_type::s32;
  }
  return dnnl::memory::data_type::undef;
}

DType to_dtype(dnnl::memory::data_type type) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::u8, DType::i32}) {
    if (to_dnnl(dtype) == type) return dtype;
  }
  CHECK(false, "oneDNN's data type {} has no DType", static_cast<int>(type));
  return {};
}

dnnl::memory::desc plain_desc(const dnnl::memory::dims& dims, DType dtype) {
  return dnnl::memory::desc(dims, to_dnnl(dtype), row_major(dims.size()));
}

bool is_plain(const dnnl::memory::desc& desc) {
  require_blocked(desc);
  if (!onednn::blocks_of(desc).empty()) return false;
  const dnnl::memory::dims dims = onednn::dims_of(desc);
  const dnnl::memory::dims strides = onednn::strides_of(desc);
  const dnnl::memory::dims padded = onednn::padded_dims_of(desc);
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (padded[i] != dims[i] || (dims[i] > 1 && strides[i] != stride)) return false;
    stride *= dims[i];
  }
  return true;
}

Layout to_layout(const Shape& shape, const dnnl::memory::desc& desc) {
  std::int64_t elements = 1;
  for (const std::int64_t size : onednn::dims_of(desc)) elements *= size;
  CHECK(elements == shape.elements(), "the description has {} elements, the shape is {}", elements,
        to_string(shape));
  const DType dtype = to_dtype(onednn::type_of(desc));
  if (is_plain(desc)) return Layout(shape, dtype);
  return Layout(shape, dtype, desc.get_size(), std::make_shared<const CpuLayout>(desc));
}

dnnl::memory::desc to_desc(const Layout& layout) {
  if (layout.is_plain()) {
    const std::span<const std::int64_t> dims = layout.shape().dims();
    return plain_desc({dims.begin(), dims.end()}, layout.dtype());
  }
  const auto* cpu = dynamic_cast<const CpuLayout*>(layout.backend());
  CHECK(cpu != nullptr, "{} is not a layout of the CPU", layout.describe());
  return cpu->desc;
}

}  // namespace lockstep
