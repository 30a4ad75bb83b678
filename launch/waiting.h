// SPDX-License-Identifier: Apache-2.0
//
// How long the compute threads spin where they wait for each other. GNU OpenMP lets them spin for many
// milliseconds before they sleep: nothing on a machine of their own, but beside a busy process a thread that
// spins holds the very core that the thread it waits for could have had.
#pragma once

namespace lockstep {

// The value of GOMP_SPINCOUNT with which waiting threads of this machine spin for about a wake-up's time.
long bounded_spin_count();

// Starts the program anew, once, with that bound: OpenMP reads it when it is loaded, before main(). To be
// called before anything that must not happen twice. Leaves the user's own OMP_WAIT_POLICY or GOMP_SPINCOUNT
// alone; where a program cannot be started anew it goes on without.
void bound_waiting(char** argv);

}  // namespace lockstep
