// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/gossip.h"

#include "kernels/backend.h"

namespace lockstep {

Gossip::Gossip(Network& network, Communicator& communicator)
    : network_(network),
      slots_(communicator, static_cast<std::int64_t>(network.values().size())),
      steps_(slots_, communicator),
      theirs_(network.values().size_bytes(), network.device()),
      seen_(slots_.neighbours().size()) {}

std::size_t Gossip::planned_bytes(std::size_t parameter_bytes) {
  return parameter_bytes +
         NeighbourSlots::planned_bytes(static_cast<std::int64_t>(parameter_bytes / sizeof(float)));
}

void Gossip::average(Stream& compute) {
  compute.synchronize();
  const std::span<float> values = network_.values();
  slots_.show(values.data());
  auto* theirs = reinterpret_cast<float*>(theirs_.data());
  const auto count = static_cast<std::int64_t>(values.size());
  int terms = 1;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const std::int64_t number = slots_.look(slots_.neighbours()[i], seen_[i], theirs);
    if (number == 0) continue;
    seen_[i] = number;
    network_.backend().add(compute, {.count = count, .a = values.data(), .b = theirs, .sum = values.data()});
    ++terms;
  }
  if (terms == 1) return;
  network_.backend().scale(
      compute, {.count = count, .factor = 1 / static_cast<float>(terms), .values = values.data()});
  network_.copy_trained_weights(compute);
}

}  // namespace lockstep
