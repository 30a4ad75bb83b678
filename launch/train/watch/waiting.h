// SPDX-License-Identifier: Apache-2.0
//
// Bounds how long waiting compute threads spin. GNU OpenMP lets them spin for many milliseconds before they
// sleep. That costs nothing on an idle machine, but beside a busy process a spinning thread occupies the core
// that the thread it waits for could use.
#pragma once

namespace lockstep {

// Restarts the program once with a bound of about the time of a wake-up, because OpenMP reads GOMP_SPINCOUNT
// when it is loaded, before main(). Call it before anything that must not happen twice. Does nothing if the
// user sets OMP_WAIT_POLICY or GOMP_SPINCOUNT; if the restart fails, the program continues without the bound.
void bound_waiting(char** argv);

}  // namespace lockstep
