// SPDX-License-Identifier: Apache-2.0
//
// Measures how long a codec computes: it exchanges a synthetic weight with simulated ranks, so that nothing
// is sent.
#pragma once

#include "comm/gradients/gradient_exchange.h"
#include "core/device.h"

namespace lockstep {

// Seconds per element of a weight to encode and decode it on the device, for this many nodes of one rank
// each. Takes some milliseconds and a few times 4 MiB. Not collective.
double codec_seconds_per_element(const ExchangeChoice& choice, Device device, int nodes);

}  // namespace lockstep
