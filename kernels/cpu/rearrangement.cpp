// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rearrangement.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {
namespace {

using dnnl::memory;

Primitive reorder_of(const memory::desc& from, const memory::desc& to) {
  return Primitive(dnnl::reorder(dnnl::reorder::primitive_desc(onednn_engine(), from, onednn_engine(), to)),
                   {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

// True if oneDNN's bf16 reorders keep all bits. Without AVX-512, 2.6.3 writes subnormal numbers as zeros.
bool reorders_keep_bf16() {
  static const bool keep = [] {
    const memory::dims dims = {1, 2, 1, 2};
    const auto described = [&](memory::format_tag tag) {
      return memory::desc(dims, memory::data_type::bf16, tag);
    };
    const memory::desc from = described(memory::format_tag::nchw), to = described(memory::format_tag::nhwc);
    const std::array<std::uint16_t, 4> bits = {0x0001, 0x007f, 0x8001, 0x3f80};
    std::array<std::uint16_t, 4> moved = {};
    try {
      reorder_of(from, to).run({bits.data(), moved.data()});
    } catch (const dnnl::error&) {
      return false;  // no such reorder
    }
    return moved == std::array{bits[0], bits[2], bits[1], bits[3]};
  }();
  return keep;
}

// The term that each index of a dimension adds to an element's offset.
std::vector<std::int64_t> offsets_of(const memory::desc& desc, std::size_t dimension) {
  const auto blocks = onednn::blocks_of(desc);
  const std::int64_t stride = onednn::strides_of(desc)[dimension];
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(onednn::dims_of(desc)[dimension]));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    auto index = static_cast<std::int64_t>(i);
    std::int64_t inside = 1;  // elements in the inner blocks
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      const auto [blocked, size] = *block;
      if (static_cast<std::size_t>(blocked) == dimension) {
        offsets[i] += index % size * inside;
        index /= size;
      }
      inside *= size;
    }
    offsets[i] += index * stride;
  }
  return offsets;
}

std::int64_t step_of(const std::vector<std::int64_t>& offsets) {
  return offsets.size() > 1 ? offsets[1] - offsets[0] : 0;
}

}  // namespace

Rearrangement::Rearrangement(const memory::desc& from, const memory::desc& to) {
  const memory::data_type type = onednn::type_of(from);
  CHECK(onednn::dims_of(from) == onednn::dims_of(to) && type == onednn::type_of(to),
        "a rearrangement requires equal sizes and types");
  const bool bf16 = type == memory::data_type::bf16;
  if (type != memory::data_type::f16 && (!bf16 || reorders_keep_bf16())) {
    try {
      primitive_ = reorder_of(from, to);
      return;
    } catch (const dnnl::error&) {
      if (!bf16) throw;
    }
  }
  for (std::size_t i = 0; i < onednn::dims_of(from).size(); ++i) {
    dimensions_.push_back({.from = offsets_of(from, i), .to = offsets_of(to, i)});
  }
  std::ranges::stable_sort(
      dimensions_, [](const Dimension& a, const Dimension& b) { return step_of(a.to) > step_of(b.to); });
  // Moves dimensions of one element, which have no step, to the front.
  std::stable_partition(dimensions_.begin(), dimensions_.end(),
                        [](const Dimension& d) { return d.to.size() == 1; });
  padded_ = onednn::dims_of(to) != onednn::padded_dims_of(to);
  to_bytes_ = to.get_size();
}

void Rearrangement::run(const void* from, void* to) {
  if (primitive_) return primitive_->run({from, to});
  if (padded_) std::memset(to, 0, to_bytes_);
  move(static_cast<const std::uint16_t*>(from), static_cast<std::uint16_t*>(to));
}

void Rearrangement::move(const std::uint16_t* from, std::uint16_t* to) const {
  // Dimensions of one element come first: the first with several elements is distributed over the threads.
  const auto several = std::ranges::find_if(dimensions_, [](const Dimension& d) { return d.to.size() > 1; });
  const auto outer = static_cast<std::size_t>(several - dimensions_.begin());
  if (outer + 1 >= dimensions_.size()) return move_inner(0, from, to);
  const Dimension& dealt = dimensions_[outer];
  deal(static_cast<std::int64_t>(dealt.to.size()), [&](std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    move_inner(outer + 1, from + dealt.from[i], to + dealt.to[i]);
  });
}

void Rearrangement::move_inner(std::size_t dimension, const std::uint16_t* from, std::uint16_t* to) const {
  const Dimension& d = dimensions_[dimension];
  const bool last = dimension + 1 == dimensions_.size();
  for (std::size_t i = 0; i < d.to.size(); ++i) {
    if (last) {
      to[d.to[i]] = from[d.from[i]];
    } else {
      move_inner(dimension + 1, from + d.from[i], to + d.to[i]);
    }
  }
}

}  // namespace lockstep
