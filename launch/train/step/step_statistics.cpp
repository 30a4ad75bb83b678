// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step/step_statistics.h"

#include "kernels/backend.h"

namespace lockstep {

StepStatistics::StepStatistics(Network& network, Communicator& communicator, std::int64_t micro_batches)
    : network_(network),
      communicator_(communicator),
      micro_batches_(micro_batches),
      pending_(network.device(), static_cast<std::int64_t>(network.statistics().size()), micro_batches) {}

std::size_t StepStatistics::planned_bytes(const MemoryPlan& network, std::int64_t micro_batches) {
  return PendingSums::planned_bytes(static_cast<std::int64_t>(network.statistics / 3 / sizeof(float)),
                                    micro_batches);
}

void StepStatistics::keep_micro_batch(Stream& compute, std::int64_t micro) {
  if (network_.statistics().empty()) return;
  pending_.keep(compute, micro, all(), network_.statistics().data());
  network_.restore_statistics(compute);
}

void StepStatistics::finish(Stream& compute) {
  if (network_.statistics().empty()) return;
  pending_.finish(compute, all(), network_.statistics().data());
  average_over_ranks(compute, communicator_, network_.statistics(), micro_batches_ * communicator_.size());
}

void average_over_ranks(Stream& stream, Communicator& communicator, std::span<float> values,
                        std::int64_t terms) {
  if (values.empty()) return;
  Event ready(stream.device());
  stream.record(ready);
  communicator.stream().wait(ready);
  communicator.all_reduce(values.data(), values.size(), DType::f32, ReduceOp::sum);
  communicator.stream().record(ready);
  stream.wait(ready);
  backend_for(stream.device())
      .scale(stream, {.count = static_cast<std::int64_t>(values.size()),
                      .factor = 1.0f / static_cast<float>(terms),
                      .values = values.data()});
}

}  // namespace lockstep
