// SPDX-License-Identifier: Apache-2.0
//
// Rearrangement: copies a tensor to another layout of the same type, bit by bit. Uses oneDNN's reorder; moves
// 16-bit elements itself if oneDNN has no reorder or would change bits.
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
  // from and to have the same dimensions and type. Throws dnnl::error if oneDNN's reorder is needed and does
  // not exist.
  Rearrangement(const dnnl::memory::desc& from, const dnnl::memory::desc& to);

  void run(const void* from, void* to);

 private:
  // An element's offset is the sum of one term per dimension, selected by its index.
  struct Dimension {
    std::vector<std::int64_t> from;  // by index
    std::vector<std::int64_t> to;
  };
  void move(const std::uint16_t* from, std::uint16_t* to) const;
  void move_inner(std::size_t dimension, const std::uint16_t* from, std::uint16_t* to) const;

  std::optional<Primitive> primitive_;
  std::vector<Dimension> dimensions_;  // the last has the smallest step in `to`
  bool padded_ = false;
  std::size_t to_bytes_ = 0;
};

}  // namespace lockstep
