// SPDX-License-Identifier: Apache-2.0
//
// PendingSums: what a rank's micro-batches add up to along the tree of all sums (comm/sum_tree.h), whose
// leaves they are: of rank 1 with two of them each, (2+3). Kept as in a binary counter (comm/reduce.h):
// before micro-batch m one sum is pending for each 1 among the digits of m, and takes the next one in as a 1
// is carried. A step of n micro-batches needs memory for as many sums as n - 1 has digits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/bucket_plan.h"
#include "core/buffer.h"
#include "core/stream.h"

namespace lockstep {

// Whether the micro-batches of each rank make up a subtree, so that ranks can add up their sums: they do
// where they are a power of two, or all are one rank's.
bool make_up_a_subtree(std::int64_t micro_batches, int ranks);

class PendingSums {
 public:
  // Of `elements` fp32 numbers of every micro-batch, of which a step has `micro_batches`.
  PendingSums(Device device, std::int64_t elements, std::int64_t micro_batches);
  static std::size_t planned_bytes(std::int64_t elements, std::int64_t micro_batches);

  // Takes elements of a micro-batch that is not a step's last, counted from 0; the others before it have been
  // taken. values is those elements, in memory of the device, and undefined afterwards.
  void keep(Stream& stream, std::int64_t micro, const ElementRange& elements, float* values);
  // values holds elements of a step's last micro-batch, and then of the sum of all.
  void finish(Stream& stream, const ElementRange& elements, float* values);

  std::size_t memory_bytes() const { return memory_.bytes(); }

 private:
  float* level(int index, const ElementRange& elements) const;

  std::int64_t elements_;
  std::int64_t last_;  // micro-batch of a step
  Buffer memory_;      // f32 [levels][elements]: level k holds the sum of 2^k micro-batches
};

}  // namespace lockstep
