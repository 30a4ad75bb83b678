// SPDX-License-Identifier: Apache-2.0
//
// StepStatistics: moves batch norm's running statistics once a step, by the mean of what each of the step's
// micro-batches, of all ranks, would have made of them: with r before the step and m a micro-batch's moments,
// the mean of (1 - momentum) * r + momentum * m. It is taken along the tree on which gradients are added
// (comm/micro_batch_sums.h), so running statistics are the same on every rank, and have the same bits however
// micro-batches are dealt to ranks.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "comm/pending_sums.h"
#include "models/network.h"

namespace lockstep {

class StepStatistics {
 public:
  // The network and the communicator outlive this. micro_batches: of each rank in a step.
  StepStatistics(Network& network, Communicator& communicator, std::int64_t micro_batches);
  static std::size_t planned_bytes(const MemoryPlan& network, std::int64_t micro_batches);

  // Before a step's first micro-batch: Network::keep_statistics. Behind each that is not the last:
  void keep_micro_batch(Stream& compute, std::int64_t micro);
  // Behind the last. Collective.
  void finish(Stream& compute);

  std::size_t memory_bytes() const { return pending_.memory_bytes(); }

 private:
  ElementRange all() const { return {0, static_cast<std::int64_t>(network_.statistics().size())}; }

  Network& network_;
  Communicator& communicator_;
  std::int64_t micro_batches_;
  PendingSums pending_;
};

// Collective. The sum over ranks divided by `terms`, for work on `stream` that follows; in place, in memory
// of the communicator's device.
void average_over_ranks(Stream& stream, Communicator& communicator, std::span<float> values,
                        std::int64_t terms);

}  // namespace lockstep
