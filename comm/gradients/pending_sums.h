// SPDX-License-Identifier: Apache-2.0
//
// PendingSums: adds a rank's micro-batches along the tree of all sums (comm/sums/sum_tree.h), whose leaves
// they are: with two per rank, rank 1 computes (2+3). It works like a binary counter (comm/sums/reduce.h):
// before micro-batch m one sum is pending for each 1 bit of m, and adding micro-batch m carries like
// adding 1. A step of n micro-batches needs memory for as many sums as n - 1 has bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/gradients/bucket_plan.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"

namespace lockstep {

// True if each rank's micro-batches make up a subtree, so that ranks can add their sums: true for a power of
// two, or for one rank.
bool make_up_a_subtree(std::int64_t micro_batches, int ranks);

class PendingSums {
 public:
  // elements: fp32 numbers per micro-batch. micro_batches: per step.
  PendingSums(Device device, std::int64_t elements, std::int64_t micro_batches);
  static std::size_t planned_bytes(std::int64_t elements, std::int64_t micro_batches);

  // Adds elements of micro-batch `micro` (from 0, not the last one of a step), after those of all earlier
  // ones. values: these elements, in device memory; undefined afterwards.
  void keep(Stream& stream, std::int64_t micro, const ElementRange& elements, float* values);
  // values: elements of the step's last micro-batch, in device memory; replaced with the sum over all
  // micro-batches.
  void finish(Stream& stream, const ElementRange& elements, float* values);

  std::size_t memory_bytes() const { return memory_.bytes(); }

 private:
  float* level(int index, const ElementRange& elements) const;

  std::int64_t elements_;
  std::int64_t last_;  // index of a step's last micro-batch
  Buffer memory_;      // f32 [levels][elements]: level k holds the sum of 2^k micro-batches
};

}  // namespace lockstep
