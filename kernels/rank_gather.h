// SPDX-License-Identifier: Apache-2.0
//
// RankGather: exchanges a few bytes with all other ranks in the middle of a pass. The caller that runs the
// pass provides it (Pass), over a communicator used for nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream.h"

namespace lockstep {

class RankGather {
 public:
  virtual ~RankGather() = default;

  virtual int ranks() const = 0;
  // Sets the node, counted in forward order, that later gathers belong to, for records.
  virtual void set_layer(std::int32_t node) = 0;
  // Writes ranks() times `bytes` to `all`, in rank order. Both are memory of the stream's device and must
  // stay valid until the work on the stream is done. Runs in stream order; all ranks call it in the same
  // order.
  virtual void gather(Stream& stream, const void* mine, void* all, std::size_t bytes) = 0;
};

}  // namespace lockstep
