// SPDX-License-Identifier: Apache-2.0
//
// Holds a rank in a phase of its work, so that a test can send it signals there.
#pragma once

namespace lockstep {

// With LOCKSTEP_HOLD=PHASE:RANK:FILE in the environment that rank of the launch, the first time that it comes
// to the phase, makes the file and waits until it is removed. Without it this does nothing. Any thread.
void hold_in(const char* phase);

}  // namespace lockstep
