// SPDX-License-Identifier: Apache-2.0
#include "launch/step_results.h"

#include "core/error.h"

namespace lockstep {

StepResults::Slot::Slot(std::int64_t micro_batches, Device device)
    : memory(align_up(sizeof(StepControl)) + static_cast<std::size_t>(micro_batches) * sizeof(LossSums),
             device, MemoryKind::pinned_host),
      done(device) {}

StepResults::StepResults(Device device, std::int64_t micro_batches)
    : lag_(device.kind == DeviceKind::cpu ? 0 : 1),
      micro_batches_(micro_batches),
      slots_{Slot(micro_batches, device), Slot(micro_batches, device)} {}

LossSums* StepResults::loss(std::int64_t micro_batch) {
  CHECK(micro_batch >= 0 && micro_batch < micro_batches_, "micro-batch {} of {}", micro_batch,
        micro_batches_);
  CHECK(enqueued_ - taken_ < 2, "the result of step {} was not taken", taken_);
  return slot_of(enqueued_).losses() + micro_batch;
}

void StepResults::copy_control(Stream& stream, const StepControl* control) {
  stream.copy(slot_of(enqueued_).control(), control, sizeof(*control));
}

void StepResults::enqueued(Stream& stream) { stream.record(slot_of(enqueued_++).done); }

std::optional<StepResult> StepResults::take_beyond(std::int64_t lag) {
  if (enqueued_ - taken_ <= lag) return std::nullopt;
  Slot& slot = slot_of(taken_);
  slot.done.synchronize();
  return StepResult{.step = taken_++,
                    .losses = {slot.losses(), static_cast<std::size_t>(micro_batches_)},
                    .control = *slot.control()};
}

}  // namespace lockstep
