// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step/step_results.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "kernels/elementwise.h"

namespace lockstep {
namespace {

constexpr std::size_t kSquaresBytes = kSquareSums * sizeof(double);

}  // namespace

double gradient_norm(const StepResult& result, double loss_scale) {
  if (result.gradient_squares.empty()) return std::nan("");
  return std::sqrt(std::accumulate(result.gradient_squares.begin(), result.gradient_squares.end(), 0.0)) /
         loss_scale;
}

bool losses_are_finite(const StepResult& result) {
  return std::ranges::all_of(result.losses, [](const LossSums& sums) { return std::isfinite(sums.loss); });
}

StepResults::Slot::Slot(std::int64_t micro_batches, Device device)
    : memory(align_up(sizeof(StepControl)) + static_cast<std::size_t>(micro_batches) * sizeof(LossSums),
             device, MemoryKind::pinned_host),
      squares(kSquaresBytes, device, MemoryKind::pinned_host),
      done(device) {}

StepResults::StepResults(Device device, std::int64_t micro_batches)
    : micro_batches_(micro_batches),
      slots_{Slot(micro_batches, device), Slot(micro_batches, device)},
      squares_(kSquaresBytes, device) {}

LossSums* StepResults::loss(StepSlot slot, std::int64_t micro_batch) {
  CHECK(micro_batch >= 0 && micro_batch < micro_batches_, "micro-batch {} of {}", micro_batch,
        micro_batches_);
  return slots_[slot.index].losses() + micro_batch;
}

void StepResults::copy_control(Stream& stream, StepSlot slot, const StepControl* control) {
  stream.copy(slots_[slot.index].control(), control, sizeof(*control));
}

void StepResults::copy_gradient_squares(Stream& stream, StepSlot slot) {
  stream.copy(slots_[slot.index].squares.data(), squares_.data(), kSquaresBytes);
}

void StepResults::enqueued(Stream& stream, StepSlot slot) { stream.record(slots_[slot.index].done); }

StepResult StepResults::result(StepSlot slot) {
  Slot& stored = slots_[slot.index];
  stored.done.synchronize();
  StepResult result{.losses = {stored.losses(), static_cast<std::size_t>(micro_batches_)},
                    .control = *stored.control()};
  if (stored.norm) {
    result.gradient_squares = {reinterpret_cast<const double*>(stored.squares.data()),
                               static_cast<std::size_t>(kSquareSums)};
  }
  return result;
}

}  // namespace lockstep
