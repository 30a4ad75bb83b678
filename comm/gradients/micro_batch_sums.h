// SPDX-License-Identifier: Apache-2.0
//
// MicroBatchSums: the exchange for training whose results do not depend on the number of ranks. The gradients
// of a step's micro-batches are the leaves of one tree, ordered by rank, then by micro-batch. A rank adds its
// own leaves (comm/gradients/pending_sums.h), then ranks add their sums. On the CPU, where ranks are added
// along the tree, 1 rank with 8 micro-batches and 8 ranks with 1 get the same bits.
//
// All sums are fp32. 16-bit gradients are therefore summed in separate memory, sent as fp32 (twice the
// bytes), and rounded once, into the gradients' memory.
#pragma once

#include "comm/gradients/gradient_exchange.h"
#include "comm/gradients/pending_sums.h"

namespace lockstep {

class MicroBatchSums final : public GradientExchange {
 public:
  // Collective. micro_batches: per rank and step; see make_up_a_subtree().
  MicroBatchSums(const BucketPlan& plan, const GradientArena& arena, Communicator& communicator,
                 std::int64_t micro_batches);
  // memory_bytes() for `elements` gradients, the first `half` of which have 16 bits.
  static std::size_t planned_bytes(std::int64_t elements, std::int64_t half, std::int64_t micro_batches);

  // Adds the gradients in the arena, of micro-batch `micro` (from 0, not the last one of a step). Later work
  // on `compute` may overwrite them.
  void keep(Stream& compute, std::int64_t micro);
  // Adds a bucket of the step's last micro-batch, from the arena. The sum over all micro-batches is then
  // where enqueue() exchanges it.
  void finish(Stream& compute, const Bucket& bucket);

  // Exchanges the sum that finish() made.
  void enqueue(std::size_t bucket) override;
  bool same_on_every_rank() const override { return true; }
  std::size_t memory_bytes() const override { return pending_.memory_bytes() + wide_.bytes(); }

 private:
  // The fp32 memory in which elements of this type are summed.
  float* summed(DType type, std::int64_t begin) const;
  // Converts 16-bit gradients into that memory.
  void widen(Stream& compute, DType type, const ElementRange& elements);

  const BucketPlan& plan_;
  const GradientArena& arena_;
  Communicator& communicator_;
  PendingSums pending_;
  Buffer wide_;  // fp32 sums of the 16-bit gradients, which come first in the flat order
};

}  // namespace lockstep
