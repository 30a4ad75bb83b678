// SPDX-License-Identifier: Apache-2.0
//
// WeightAverage: an exponential moving average of a network's parameters over the training steps, which often
// evaluates better than the parameters themselves. A flat fp32 copy on the network's device, updated after
// each step. It excludes batch norm's running statistics: evaluation uses those of training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/state.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "kernels/update.h"
#include "models/network.h"

namespace lockstep {

class WeightAverage {
 public:
  static constexpr std::string_view kSuffix = ".ema";  // of a parameter's name

  // Starts with the network's current parameters; the network must outlive it. decay: see AverageUpdate; in
  // (0, 1).
  WeightAverage(Network& network, double decay);
  // Bytes for this size of fp32 parameters.
  static std::size_t planned_bytes(std::size_t parameter_bytes) { return parameter_bytes; }

  // Call after an optimizer's step, with its control; can be recorded.
  void update(Stream& stream, const StepControl* control);
  // Swaps the average and the network's parameters; a second call swaps them back. No step may run in
  // between.
  void swap(Stream& stream);

  // Visits each parameter's average, as in "fc.weight.ema", as replicated. No work may be pending, and the
  // values must not be swapped.
  void visit_state(StateVisitor& visitor);
  // The average in memory order, including padding.
  std::span<float> values() const;

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(network_.values().size()); }

  Network& network_;
  double decay_;
  Buffer average_;
};

}  // namespace lockstep
