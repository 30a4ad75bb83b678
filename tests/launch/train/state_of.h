// SPDX-License-Identifier: Apache-2.0
//
// Reads and restores all state that a Trainer or a Network on a CPU exposes.
#pragma once

#include <utility>

#include "models/state_copy.h"

namespace lockstep {

template <typename Owner>
StateCopy state_of(Owner& owner) {
  StateReader reader({});
  owner.visit_state(reader);
  return std::move(reader.copy());
}

template <typename Owner>
void set_state(Owner& owner, const StateCopy& state) {
  StateWriter writer({}, state);
  owner.visit_state(writer);
}

}  // namespace lockstep
