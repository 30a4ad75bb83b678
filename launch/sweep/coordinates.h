// SPDX-License-Identifier: Apache-2.0
//
// Parallel coordinates of a sweep as SVG text: an axis for each key that was searched and one for each
// figure, a line for each trial. The colour is that of the objective, from low to high; the page that shows
// it may be light or dark. The same outcome gives the same text.
#pragma once

#include <string>

#include "launch/sweep/outcome.h"
#include "launch/sweep/space.h"

namespace lockstep {

// Trials that were trained for an epoch at least. A browser shows a trial's numbers where the pointer rests
// on its line.
std::string parallel_coordinates(const SweepOutcome& outcome, const SweepSpace& space);

}  // namespace lockstep
