// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/device_marks.h"

namespace lockstep {

DeviceMarks::DeviceMarks(Stream& stream) {
  if (stream.runs_on_host()) return;
  one_ = Buffer(sizeof(std::uint32_t), stream.device());
  marks_ = Buffer(StepSlot::kCount * kAlignment, stream.device(), MemoryKind::pinned_host);
  *mark(0) = 1;
  stream.copy(one_.data(), mark(0), sizeof(std::uint32_t));
  stream.synchronize();
}

void DeviceMarks::begin(StepSlot slot, std::int64_t step) {
  if (marks_.bytes() == 0) return;
  std::atomic_ref(*mark(slot.index)).store(0, std::memory_order_release);
  steps_[slot.index].store(step, std::memory_order_release);
}

void DeviceMarks::after_backward(Stream& stream, StepSlot slot) {
  if (marks_.bytes() > 0) stream.copy(mark(slot.index), one_.data(), sizeof(std::uint32_t));
}

void DeviceMarks::ended(StepSlot slot) { steps_[slot.index].store(0, std::memory_order_release); }

DevicePlace DeviceMarks::place() const {
  DevicePlace place;
  for (std::size_t slot = 0; slot < StepSlot::kCount; ++slot) {
    const std::int64_t step = steps_[slot].load(std::memory_order_acquire);
    if (step == 0 || (place.step > 0 && place.step < step)) continue;
    place = {.step = step,
             .behind_backward = std::atomic_ref(*mark(slot)).load(std::memory_order_acquire) != 0};
  }
  return place;
}

}  // namespace lockstep
