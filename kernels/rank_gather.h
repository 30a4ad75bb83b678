// SPDX-License-Identifier: Apache-2.0
//
// RankGather: what kernels see of other ranks: a few bytes of each, in the middle of a pass. Who runs the
// pass provides it (Pass), over a communicator that nothing else uses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream.h"

namespace lockstep {

class RankGather {
 public:
  virtual ~RankGather() = default;

  virtual int ranks() const = 0;
  // Whose sums are gathered from now on, for records: counted in forward order.
  virtual void set_layer(std::int32_t node) = 0;
  // all takes ranks() times `bytes`, in rank order. Both are memory of the stream's device, which holds them
  // until later work on the stream is done. In stream order; all ranks call it in the same order.
  virtual void gather(Stream& stream, const void* mine, void* all, std::size_t bytes) = 0;
};

}  // namespace lockstep
