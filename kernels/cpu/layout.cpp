// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/layout.h"

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep {
namespace {

dnnl::memory::format_tag row_major(std::size_t rank) {
  using Tag = dnnl::memory::format_tag;
  constexpr Tag tags[] = {Tag::a, Tag::ab, Tag::abc, Tag::abcd, Tag::abcde};
  CHECK(rank >= 1 && rank <= std::size(tags), "oneDNN kernels take 1 to 5 dimensions, not {}", rank);
  return tags[rank - 1];
}

const dnnl_memory_desc_t& blocked(const dnnl::memory::desc& desc) {
  CHECK(desc.data.format_kind == dnnl_blocked && desc.data.extra.flags == dnnl_memory_extra_flag_none &&
            desc.data.offset0 == 0,
        "not a layout that tensors can be kept in");
  return desc.data;
}

// "aBcd16b" with padding and strides spelled out; a dimension of one element has no stride worth telling.
std::string describe_desc(const dnnl::memory::desc& desc) {
  const dnnl_memory_desc_t& data = blocked(desc);
  const dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  std::string text;
  for (int i = 0; i < data.ndims; ++i) {
    const bool single = data.padded_dims[i] == 1;
    text += fmt::format("{}{}{}", i == 0 ? "" : " ", data.padded_dims[i],
                        single ? std::string() : fmt::format(":{}", blocking.strides[i]));
  }
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    text += fmt::format("{}{}{}", i == 0 ? " " : "", blocking.inner_blks[i],
                        static_cast<char>('a' + blocking.inner_idxs[i]));
  }
  return "blocked " + text;
}

}  // namespace

CpuLayout::CpuLayout(const dnnl::memory::desc& memory) : desc(memory), description(describe_desc(memory)) {}

bool CpuLayout::equals(const detail::LayoutBackend& other) const {
  const auto* cpu = dynamic_cast<const CpuLayout*>(&other);
  return cpu != nullptr && cpu->description == description;
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

dnnl::memory::desc plain_desc(const dnnl::memory::dims& dims, DType dtype) {
  return dnnl::memory::desc(dims, to_dnnl(dtype), row_major(dims.size()));
}

bool is_plain(const dnnl::memory::desc& desc) {
  const dnnl_memory_desc_t& data = blocked(desc);
  const dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  if (blocking.inner_nblks != 0) return false;
  std::int64_t stride = 1;
  for (int i = data.ndims - 1; i >= 0; --i) {
    if (data.padded_dims[i] != data.dims[i]) return false;
    if (data.dims[i] > 1 && blocking.strides[i] != stride) return false;
    stride *= data.dims[i];
  }
  return true;
}

Layout to_layout(const Shape& shape, const dnnl::memory::desc& desc) {
  std::int64_t elements = 1;
  for (int i = 0; i < desc.data.ndims; ++i) elements *= desc.data.dims[i];
  CHECK(elements == shape.elements(), "{} elements described for shape {}", elements, to_string(shape));
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::u8, DType::i32}) {
    if (to_dnnl(dtype) != desc.data_type()) continue;
    if (is_plain(desc)) return Layout(shape, dtype);
    return Layout(shape, dtype, desc.get_size(), std::make_shared<const CpuLayout>(desc));
  }
  CHECK(false, "oneDNN's data type {} has no DType", static_cast<int>(desc.data.data_type));
  return {};
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
