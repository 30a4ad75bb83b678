// SPDX-License-Identifier: Apache-2.0
//
// Gradients against the loss itself. The directions are random: along the gradient an element that is wrongly
// zero would not show.
#pragma once

#include <span>

#include "tests/models/network_fixture.h"

namespace lockstep {

struct SlopeOptions {
  int directions = 4;
  // What an element changes by, over the root mean square of the parameter's values. Larger steps cross more
  // kinks of activations, smaller ones drown in fp32's rounding.
  double step = 3e-4;
};

// How far the gradients of the fixture's last backward are from central differences of its loss: the norm of
// the difference over the norm of the slopes, over all directions. Only these parameters change, and in the
// end have their values back. Slopes that fp32 cannot tell from none count as right where the gradient's are
// as small.
double slope_error(NetworkFixture& fixture, std::span<const Parameter> parameters,
                   const SlopeOptions& options = {});

}  // namespace lockstep
