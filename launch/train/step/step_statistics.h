// SPDX-License-Identifier: Apache-2.0
//
// StepStatistics: updates batch norm's running statistics once per step, with all micro-batches of all ranks.
// With r before the step and m the moments of a micro-batch, the new value is the mean of (1 - momentum) * r
// + momentum * m over micro-batches. It sums along the tree of the gradients
// (comm/gradients/micro_batch_sums.h), so the bits are the same on every rank and for any distribution of
// micro-batches over ranks.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "comm/gradients/pending_sums.h"
#include "models/network.h"

namespace lockstep {

class StepStatistics {
 public:
  // The network and the communicator outlive this. micro_batches: per rank and step.
  StepStatistics(Network& network, Communicator& communicator, std::int64_t micro_batches);
  static std::size_t planned_bytes(const MemoryPlan& network, std::int64_t micro_batches);
  std::int64_t micro_batches() const { return micro_batches_; }

  // Call Network::keep_statistics() before a step's first micro-batch, and this after each micro-batch except
  // the last.
  void keep_micro_batch(Stream& compute, std::int64_t micro);
  // Collective; call after the last micro-batch.
  void finish(Stream& compute);

  std::size_t memory_bytes() const { return pending_.memory_bytes(); }

 private:
  ElementRange all() const { return {0, static_cast<std::int64_t>(network_.statistics().size())}; }

  Network& network_;
  Communicator& communicator_;
  std::int64_t micro_batches_;
  PendingSums pending_;
};

// Collective. Replaces `values`, in memory of the communicator's device, by their sum over ranks divided by
// `terms`. Later work on `stream` sees the result.
void average_over_ranks(Stream& stream, Communicator& communicator, std::span<float> values,
                        std::int64_t terms);

}  // namespace lockstep
