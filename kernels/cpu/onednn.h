// SPDX-License-Identifier: Apache-2.0
//
// Differences between oneDNN 2.6 (Debian 12) and 3.x (Ubuntu 24.04), here and in onednn.cpp: describing a
// primitive, reading a memory description, setting an address. All other code uses the common API.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

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
// The primitive_desc of a backward primitive P; hint is the primitive_desc of its forward.
template <typename P, typename Hint, typename... Arguments>
typename P::primitive_desc describe_backward(const dnnl::engine& engine,
                                             const dnnl::primitive_attr& attributes, const Hint& hint,
                                             const Arguments&... arguments) {
  return typename P::primitive_desc(engine, arguments..., hint, attributes);
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

#endif

dnnl::memory::dims dims_of(const dnnl::memory::desc& desc);
dnnl::memory::dims padded_dims_of(const dnnl::memory::desc& desc);
dnnl::memory::dims strides_of(const dnnl::memory::desc& desc);
// The same arrangement for another element type. 3.x can only describe layouts that have a format tag, so
// with_type throws without one, and kept tensors are first described by with_type_or_plain, which falls back
// to plain row-major order.
dnnl::memory::desc with_type(const dnnl::memory::desc& desc, dnnl::memory::data_type type);
dnnl::memory::desc with_type_or_plain(const dnnl::memory::desc& desc, dnnl::memory::data_type type);
dnnl::memory::data_type type_of(const dnnl::memory::desc& desc);
// The inner blocks, outermost first: (dimension, elements).
std::vector<std::pair<int, std::int64_t>> blocks_of(const dnnl::memory::desc& desc);
// True if blocks and strides describe the memory completely, so that tensors can be kept in it.
bool is_blocked(const dnnl::memory::desc& desc);

dnnl_status_t set_address(dnnl_memory_t memory, void* address, dnnl_stream_t stream);

}  // namespace lockstep::onednn
