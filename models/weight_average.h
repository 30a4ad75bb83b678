// SPDX-License-Identifier: Apache-2.0
//
// WeightAverage: an exponential moving average of a network's parameters over the steps of its training,
// which often evaluates better than the parameters themselves. It lies flat beside them, in fp32 on their
// device, and each step moves it there. Running statistics of batch norm are no part of it: those of training
// stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/buffer.h"
#include "core/state.h"
#include "core/stream.h"
#include "kernels/update.h"
#include "models/network.h"

namespace lockstep {

class WeightAverage {
 public:
  // Begins at the network's parameters; the network outlives it. decay: see AverageUpdate; in (0, 1).
  WeightAverage(Network& network, double decay);
  // Of fp32 parameters of so many bytes.
  static std::size_t planned_bytes(std::size_t parameter_bytes) { return parameter_bytes; }

  // Behind an optimizer's step, whose control this is; may be recorded.
  void update(Stream& stream, const StepControl* control);
  // The network has the average, and this what was in the network; once more, and all is as it was. No step
  // lies between.
  void swap(Stream& stream);

  // Each parameter's, as in "fc.weight.ema": replicated. No work may be under way, and none be swapped.
  void visit_state(StateVisitor& visitor);
  // As it lies in memory, padding and all.
  std::span<float> values() const;

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(network_.values().size()); }

  Network& network_;
  double decay_;
  Buffer average_;
};

}  // namespace lockstep
