// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn.h"

#include <optional>

#include "core/error.h"

namespace lockstep::onednn {

#if DNNL_VERSION_MAJOR >= 3

dnnl::memory::dims dims_of(const dnnl::memory::desc& desc) { return desc.get_dims(); }
dnnl::memory::dims padded_dims_of(const dnnl::memory::desc& desc) { return desc.get_padded_dims(); }
dnnl::memory::dims strides_of(const dnnl::memory::desc& desc) { return desc.get_strides(); }
dnnl::memory::data_type type_of(const dnnl::memory::desc& desc) { return desc.get_data_type(); }
std::vector<std::pair<int, std::int64_t>> blocks_of(const dnnl::memory::desc& desc) {
  std::vector<std::pair<int, std::int64_t>> blocks;
  for (int i = 0; i < desc.get_inner_nblks(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    blocks.emplace_back(static_cast<int>(desc.get_inner_idxs()[index]), desc.get_inner_blks()[index]);
  }
  return blocks;
}

bool is_blocked(const dnnl::memory::desc& desc) {
  return desc.get_format_kind() == dnnl::memory::format_kind::blocked && desc.get_submemory_offset() == 0;
}

namespace {

// True if both descriptions give every element the same offset. The stride of a dimension with a single block
// is ignored.
bool lies_alike(const dnnl::memory::desc& a, const dnnl::memory::desc& b) {
  if (a == b) return true;
  if (!is_blocked(a) || !is_blocked(b) || blocks_of(a) != blocks_of(b)) return false;
  dnnl::memory::dims blocks = padded_dims_of(a);
  if (blocks != padded_dims_of(b)) return false;
  for (const auto& [dimension, elements] : blocks_of(a))
    blocks[static_cast<std::size_t>(dimension)] /= elements;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] > 1 && strides_of(a)[i] != strides_of(b)[i]) return false;
  }
  return true;
}

// oneDNN can describe blocks of a type only by a format tag: finds the tag that matches this description, if
// any.
std::optional<dnnl::memory::desc> tagged_with_type(const dnnl::memory::desc& desc,
                                                   dnnl::memory::data_type type) {
  const dnnl::memory::dims dims = dims_of(desc);
  for (int tag = dnnl_format_tag_any + 1; tag < dnnl_format_tag_last; ++tag) {
    const auto format = static_cast<dnnl::memory::format_tag>(tag);
    const dnnl::memory::desc tagged(dims, type_of(desc), format, true);  // empty if the tag does not fit dims
    if (tagged.get(true) != nullptr && lies_alike(tagged, desc))
      return dnnl::memory::desc(dims, type, format);
  }
  return std::nullopt;
}

}  // namespace

dnnl::memory::desc with_type(const dnnl::memory::desc& desc, dnnl::memory::data_type type) {
  if (type == type_of(desc)) return desc;
  const std::optional<dnnl::memory::desc> made = tagged_with_type(desc, type);
  CHECK(made, "oneDNN has no format tag for this layout");
  return *made;
}

dnnl::memory::desc with_type_or_plain(const dnnl::memory::desc& desc, dnnl::memory::data_type type) {
  if (type == type_of(desc) && type == dnnl::memory::data_type::f32) return desc;  // stays fp32
  if (const std::optional<dnnl::memory::desc> made = tagged_with_type(desc, type)) return *made;
  const dnnl::memory::dims dims = dims_of(desc);
  dnnl::memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return dnnl::memory::desc(dims, type, strides);
}

dnnl_status_t set_address(dnnl_memory_t memory, void* address, dnnl_stream_t) {
  return dnnl_memory_set_data_handle(memory, address);
}

#else

dnnl::memory::dims dims_of(const dnnl::memory::desc& desc) { return desc.dims(); }
dnnl::memory::dims padded_dims_of(const dnnl::memory::desc& desc) {
  return {desc.data.padded_dims, desc.data.padded_dims + desc.data.ndims};
}

dnnl::memory::dims strides_of(const dnnl::memory::desc& desc) {
  return {desc.data.format_desc.blocking.strides, desc.data.format_desc.blocking.strides + desc.data.ndims};
}

dnnl::memory::data_type type_of(const dnnl::memory::desc& desc) { return desc.data_type(); }
std::vector<std::pair<int, std::int64_t>> blocks_of(const dnnl::memory::desc& desc) {
  const dnnl_blocking_desc_t& blocking = desc.data.format_desc.blocking;
  std::vector<std::pair<int, std::int64_t>> blocks;
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    blocks.emplace_back(static_cast<int>(blocking.inner_idxs[i]), blocking.inner_blks[i]);
  }
  return blocks;
}

bool is_blocked(const dnnl::memory::desc& desc) {
  return desc.data.format_kind == dnnl_blocked && desc.data.extra.flags == dnnl_memory_extra_flag_none &&
         desc.data.offset0 == 0;
}

dnnl::memory::desc with_type(const dnnl::memory::desc& desc, dnnl::memory::data_type type) {
  dnnl::memory::desc made = desc;
  made.data.data_type = dnnl::memory::convert_to_c(type);
  return made;
}

dnnl::memory::desc with_type_or_plain(const dnnl::memory::desc& desc, dnnl::memory::data_type type) {
  return with_type(desc, type);
}

dnnl_status_t set_address(dnnl_memory_t memory, void* address, dnnl_stream_t stream) {
  return dnnl_memory_set_data_handle_v2(memory, address, stream);
}

#endif

}  // namespace lockstep::onednn
