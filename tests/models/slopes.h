// SPDX-License-Identifier: Apache-2.0
//
// Compares gradients with finite differences of the loss. The directions are random: along the gradient, an
// element that is wrongly zero would not show.
#pragma once

#include <span>

#include "tests/models/network_fixture.h"

namespace lockstep {

// The error of the fixture's last gradients against central differences of its loss: the norm of the
// difference over the norm of the slopes, over all directions. Changes only these parameters and restores
// their values. Slopes below the resolution of fp32 count as correct if the gradient's are as small.
double slope_error(NetworkFixture& fixture, std::span<const Parameter> parameters);

}  // namespace lockstep
