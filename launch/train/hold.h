// SPDX-License-Identifier: Apache-2.0
//
// Holds a rank in a phase of its work, so that a test can send it signals.
#pragma once

namespace lockstep {

// With LOCKSTEP_HOLD=PHASE:RANK:FILE in the environment, that rank of the launch creates FILE the first time
// it enters PHASE, and waits until FILE is removed. Without it, does nothing. Any thread.
void hold_in(const char* phase);

}  // namespace lockstep
