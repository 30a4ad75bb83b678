// SPDX-License-Identifier: Apache-2.0
//
// What differs between oneDNN 2.6 (Debian 12) and 3.x (Ubuntu 24.04), in one place: how a primitive is
// described, how a memory description is read, and how an address is set. Everything else is written against
// what both have.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/error.h"

namespace lockstep::onednn {

#if DNNL_VERSION_MAJOR >= 3

using PoolingForward = dnnl::pooling_forward;
using PoolingBackward = dnnl::pooling_backward;

// The primitive_desc of a P described by these arguments.
template <typename P, typename... Arguments>
typename P::primitive_desc describe(const dnnl::engine& engine, const dnnl::primitive_attr& attributes,
                                    const Arguments&... arguments) {
  return typename P::primitive_desc(engine, arguments..., attributes);
}
// Of a backward primitive: hint is the primitive_desc of its forward.
template <typename P, typename Hint, typename... Arguments>
typename P::primitive_desc describe_backward(const dnnl::engine& engine,
                                             const dnnl::primitive_attr& attributes, const Hint& hint,
                                             const Arguments&... arguments) {
  return typename P::primitive_desc(engine, arguments..., hint, attributes);
}

inline dnnl::memory::dims dims_of(const dnnl::memory::desc& desc) { return desc.get_dims(); }
inline dnnl::memory::dims padded_dims_of(const dnnl::memory::desc& desc) { return desc.get_padded_dims(); }
inline dnnl::memory::dims strides_of(const dnnl::memory::desc& desc) { return desc.get_strides(); }
inline dnnl::memory::data_type type_of(const dnnl::memory::desc& desc) { return desc.get_data_type(); }
// The inner blocks, outermost first: (dimension, elements).
inline std::vector<std::pair<int, std::int64_t>> blocks_of(const dnnl::memory::desc& desc) {
  std::vector<std::pair<int, std::int64_t>> blocks;
  for (int i = 0; i < desc.get_inner_nblks(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    blocks.emplace_back(static_cast<int>(desc.get_inner_idxs()[index]), desc.get_inner_blks()[index]);
  }
  return blocks;
}
// Whether tensors can be kept in it: blocks and strides say everything.
inline bool is_blocked(const dnnl::memory::desc& desc) {
  return desc.get_format_kind() == dnnl::memory::format_kind::blocked && desc.get_submemory_offset() == 0;
}

inline void add_eltwise(dnnl::post_ops& ops, dnnl::algorithm algorithm, float alpha, float beta) {
  ops.append_eltwise(algorithm, alpha, beta);
}

inline dnnl_status_t set_address(dnnl_memory_t memory, void* address, dnnl_stream_t) {
  return dnnl_memory_set_data_handle(memory, address);
}

#else

using PoolingForward = dnnl::pooling_v2_forward;
using PoolingBackward = dnnl::pooling_v2_backward;

template <typename P, typename... Arguments>
typename P::primitive_desc describe(const dnnl::engine& engine, const dnnl::primitive_attr& attributes,
                                    const Arguments&... arguments) {
  return typename P::primitive_desc(typename P::desc(arguments...), attributes, engine);
}
template <typename P, typename Hint, typename... Arguments>
typename P::primitive_desc describe_backward(const dnnl::engine& engine,
                                             const dnnl::primitive_attr& attributes, const Hint& hint,
                                             const Arguments&... arguments) {
  return typename P::primitive_desc(typename P::desc(arguments...), attributes, engine, hint);
}

inline dnnl::memory::dims dims_of(const dnnl::memory::desc& desc) { return desc.dims(); }
inline dnnl::memory::dims padded_dims_of(const dnnl::memory::desc& desc) {
  return {desc.data.padded_dims, desc.data.padded_dims + desc.data.ndims};
}
inline dnnl::memory::dims strides_of(const dnnl::memory::desc& desc) {
  return {desc.data.format_desc.blocking.strides, desc.data.format_desc.blocking.strides + desc.data.ndims};
}
inline dnnl::memory::data_type type_of(const dnnl::memory::desc& desc) { return desc.data_type(); }
inline std::vector<std::pair<int, std::int64_t>> blocks_of(const dnnl::memory::desc& desc) {
  const dnnl_blocking_desc_t& blocking = desc.data.format_desc.blocking;
  std::vector<std::pair<int, std::int64_t>> blocks;
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    blocks.emplace_back(static_cast<int>(blocking.inner_idxs[i]), blocking.inner_blks[i]);
  }
  return blocks;
}
inline bool is_blocked(const dnnl::memory::desc& desc) {
  return desc.data.format_kind == dnnl_blocked && desc.data.extra.flags == dnnl_memory_extra_flag_none &&
         desc.data.offset0 == 0;
}

inline void add_eltwise(dnnl::post_ops& ops, dnnl::algorithm algorithm, float alpha, float beta) {
  ops.append_eltwise(1.0f, algorithm, alpha, beta);
}

inline dnnl_status_t set_address(dnnl_memory_t memory, void* address, dnnl_stream_t stream) {
  return dnnl_memory_set_data_handle_v2(memory, address, stream);
}

#endif

}  // namespace lockstep::onednn
