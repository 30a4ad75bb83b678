// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step/exchanged_rate.h"

#include <algorithm>
#include <limits>

namespace lockstep {

ExchangedRate::ExchangedRate(Device device, double highest)
    : least_(std::max(0.01 * highest, double{std::numeric_limits<float>::min()})),
      host_(StepSlot::kCount * sizeof(float), device, MemoryKind::pinned_host),
      device_(StepSlot::kCount * sizeof(float), device) {}

void ExchangedRate::set(StepSlot slot, double rate) {
  *at(host_, slot) = static_cast<float>(std::max(rate, least_));
}

const float* ExchangedRate::enqueue(Stream& stream, StepSlot slot) {
  stream.copy(at(device_, slot), at(host_, slot), sizeof(float));
  return at(device_, slot);
}

}  // namespace lockstep
