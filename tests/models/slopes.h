// SPDX-License-Identifier: Apache-2.0
//
// Compares gradients with finite differences of the loss. The directions are random: along the gradient, an
// element that is wrongly zero would not show.
#pragma once

#include <span>

#include "tests/models/network_fixture.h"

namespace lockstep {

struct SlopeOptions {
  int directions = 4;
  // The change of an element over the root mean square of the parameter's values. Larger steps cross more
  // kinks of activations; smaller ones vanish in fp32 rounding.
  double step = 3e-4;
};

// The error of the fixture's last gradients against central differences of its loss: the norm of the
// difference over the norm of the slopes, over all directions. Changes only these parameters and restores
// their values. Slopes below the resolution of fp32 count as correct if the gradient's are as small.
double slope_error(NetworkFixture& fixture, std::span<const Parameter> parameters,
                   const SlopeOptions& options = {});

}  // namespace lockstep
