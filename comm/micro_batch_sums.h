// SPDX-License-Identifier: Apache-2.0
//
// MicroBatchSums: the exchange of a training whose bits do not depend on the ranks. The gradients of every
// micro-batch of a step are leaves of one tree, in the order of ranks and, of each rank, in that of its
// micro-batches; a rank adds up its own (comm/pending_sums.h), then ranks their sums. So 1 rank with 8
// micro-batches and 8 ranks with one get the same bits, on the CPU, where ranks are added along the tree.
//
// All of it is added in fp32. 16-bit gradients are therefore summed in memory of their own, travel in fp32,
// twice the bytes, and are rounded once, into the gradients' memory.
#pragma once

#include "comm/gradient_exchange.h"
#include "comm/pending_sums.h"

namespace lockstep {

class MicroBatchSums final : public GradientExchange {
 public:
  // Collective. micro_batches: of each rank in a step; they make up a subtree.
  MicroBatchSums(const BucketPlan& plan, const GradientArena& arena, Communicator& communicator,
                 std::int64_t micro_batches);
  // memory_bytes() of gradients of so many elements, the first `half` of which are of 16 bits.
  static std::size_t planned_bytes(std::int64_t elements, std::int64_t half, std::int64_t micro_batches);

  // The gradients of a micro-batch that is not the step's last, counted from 0, are in the arena, which may
  // be overwritten behind this.
  void keep(Stream& compute, std::int64_t micro);
  // A bucket of the last one's is in the arena: from here until it is exchanged the sum of all is in its
  // place.
  void finish(Stream& compute, const Bucket& bucket);

  // Of what finish() left.
  void enqueue(std::size_t bucket) override;
  bool same_on_every_rank() const override { return true; }
  std::size_t memory_bytes() const override { return pending_.memory_bytes() + wide_.bytes(); }

 private:
  // Where elements of a type are summed up: fp32.
  float* summed(DType type, std::int64_t begin) const;
  // Brings gradients there, where they are not.
  void widen(Stream& compute, DType type, const ElementRange& elements);

  const BucketPlan& plan_;
  const GradientArena& arena_;
  Communicator& communicator_;
  PendingSums pending_;
  Buffer wide_;  // f32, of the 16-bit gradients, which come first in the flat order
};

}  // namespace lockstep
