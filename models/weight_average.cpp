// SPDX-License-Identifier: Apache-2.0
#include "models/weight_average.h"

#include "core/error.h"

namespace lockstep {

WeightAverage::WeightAverage(Network& network, double decay)
    : network_(network),
      decay_(decay),
      average_(planned_bytes(network.values().size_bytes()), network.device()) {
  CHECK(decay > 0 && decay < 1, "decay is {}, must be above 0 and below 1", decay);
  Stream stream(network.device(), StreamUse::compute);
  stream.copy(average_.data(), network.values().data(), average_.bytes());
  stream.synchronize();
}

void WeightAverage::update(Stream& stream, const StepControl* control) {
  network_.backend().average_values(stream, {.control = control,
                                             .decay = decay_,
                                             .count = count(),
                                             .value = network_.values().data(),
                                             .average = values().data()});
}

void WeightAverage::swap(Stream& stream) {
  network_.backend().swap_values(
      stream, {.count = count(), .values = network_.values().data(), .others = values().data()});
  network_.copy_trained_weights(stream);
}

void WeightAverage::visit_state(StateVisitor& visitor) {
  visit_flat(visitor, network_.parameters(), values(), std::string(kSuffix), StateScope::replicated);
}

std::span<float> WeightAverage::values() const {
  return {reinterpret_cast<float*>(average_.data()), average_.bytes() / sizeof(float)};
}

}  // namespace lockstep
