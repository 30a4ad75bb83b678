// SPDX-License-Identifier: Apache-2.0
//
// Parallel coordinates of a sweep as SVG text: an axis for each searched key, for samples/s and for accuracy,
// and a line for each trial. The colour of a line shows the objective from low to high, on a light or a dark
// page. The same outcome gives the same text.
#pragma once

#include <string>

#include "launch/program/sweep/jobs/outcome.h"
#include "launch/program/sweep/space.h"

namespace lockstep {

// Draws trials with at least one epoch. A browser shows a trial's numbers while the pointer is on its line.
std::string parallel_coordinates(const SweepOutcome& outcome, const SweepSpace& space);

}  // namespace lockstep
