// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/kept_memory.h"

#include "comm/gradients/gradient_exchange.h"
#include "kernels/backend.h"

namespace lockstep {

KeptMemory::KeptMemory(std::int64_t elements, Device device) : elements_(elements) {
  for (Buffer& memory : memory_) memory = Buffer(static_cast<std::size_t>(elements) * sizeof(float), device);
}

void KeptMemory::settle(Stream& compute, const std::int32_t* finite) {
  if (compute.runs_on_host()) {
    if (*finite != 0) turn_ = 1 - turn_;
    return;
  }
  backend_for(compute.device())
      .keep_if_finite(compute, {.finite = finite, .count = elements_, .from = next(), .to = now()});
}

std::int64_t StepCount::begin() {
  if (!counts_skipped()) return memory()->value();
  if (known_ < 0) {
    StepDigits restored;
    Stream stream(count_.device(), StreamUse::copy);
    stream.copy(&restored, memory(), sizeof(restored));
    stream.synchronize();
    known_ = restored.value();
  }
  return known_++;
}

void StepCount::settle(Stream& compute, const std::int32_t* finite) {
  backend_for(compute.device())
      .keep_if_finite(compute, {.finite = compute.runs_on_host() ? finite : nullptr, .steps = memory()});
}

void take_back_skipped(GradientExchange& exchange, std::int64_t steps, Stream& compute) {
  for (const ExchangeState& state : exchange.state()) {
    if (!state.counts_skipped) continue;
    StepDigits digits;
    compute.copy(&digits, state.memory.data, sizeof(digits));
    compute.synchronize();
    digits = StepDigits::of(digits.value() - steps);
    compute.copy(state.memory.data, &digits, sizeof(digits));
    compute.synchronize();
  }
}

}  // namespace lockstep
