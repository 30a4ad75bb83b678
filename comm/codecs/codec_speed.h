// SPDX-License-Identifier: Apache-2.0
//
// How long a codec computes, measured: it exchanges a made-up weight with ranks that are not there, so that
// nothing travels.
#pragma once

#include "comm/gradient_exchange.h"
#include "core/device.h"

namespace lockstep {

// Seconds of a stream of the device for each element of a weight, to encode and decode it between so many
// nodes of one rank. Takes some milliseconds and a few times 4 MiB, and meets nobody.
double codec_seconds_per_element(const ExchangeChoice& choice, Device device, int nodes);

}  // namespace lockstep
