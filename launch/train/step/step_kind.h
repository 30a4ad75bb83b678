// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace lockstep {

// The data that ranks exchange in a step.
enum class StepKind {
  synchronous,  // gradients
  local,        // nothing
  averaging,    // a local step, then the ranks average parameters
};
inline constexpr std::size_t kStepKinds = static_cast<std::size_t>(StepKind::averaging) + 1;

// The times that a step takes on a GPU; each value includes those before it. Steps of different detail have
// different recordings.
enum class StepDetail { phases, buckets, layers };
inline constexpr std::size_t kStepDetails = static_cast<std::size_t>(StepDetail::layers) + 1;

// Determines the kind of each step of a training.
struct LocalSgdOptions {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // Steps from one average to the next; 1: average after every step. kNever: no averaging steps; the last
  // average is the initial parameters, or set by LocalSgd::remember_average().
  std::int64_t every = 1;
  std::int64_t after = 0;  // synchronous steps before the first local one; kNever: all steps

  // The kind of a step of the training, from 0. The same on every rank.
  StepKind kind_of(std::int64_t step) const {
    if (step < after) return StepKind::synchronous;
    return (step - after + 1) % every == 0 ? StepKind::averaging : StepKind::local;
  }
};

}  // namespace lockstep
