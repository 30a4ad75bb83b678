// SPDX-License-Identifier: Apache-2.0
//
// Rearrangement: a tensor from one arrangement in memory to another, of the same type, with every bit kept.
// Uses oneDNN's reorder; moves 16-bit elements itself where oneDNN has none or would change bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/cpu/engine.h"

namespace lockstep {

class Rearrangement {
 public:
  Rearrangement() = default;
  // Same dimensions, same type. Throws dnnl::error where oneDNN must do it and cannot.
  Rearrangement(const dnnl::memory::desc& from, const dnnl::memory::desc& to);

  void run(const void* from, void* to);

 private:
  // The offset of an element is a sum of one summand for its index in each dimension.
  struct Dimension {
    std::vector<std::int64_t> from;  // by index
    std::vector<std::int64_t> to;
  };
  void move(const std::uint16_t* from, std::uint16_t* to) const;
  void move_inner(std::size_t dimension, const std::uint16_t* from, std::uint16_t* to) const;

  std::optional<Primitive> primitive_;
  std::vector<Dimension> dimensions_;  // the last is the one whose elements lie closest in `to`
  bool padded_ = false;
  std::size_t to_bytes_ = 0;
};

}  // namespace lockstep
