// SPDX-License-Identifier: Apache-2.0
//
// A hash of what training has changed and ranks share: parameters, running statistics as evaluation reads
// them, optimizer state and its number of steps. Two runs that end with the same digest ended with the same
// bits.
#pragma once

#include <string>

#include "models/network.h"
#include "models/optimizer.h"

namespace lockstep {

// 32 hexadecimal digits of XXH3-128 over names, shapes and bytes.
std::string digest(Network& network, Optimizer& optimizer);

}  // namespace lockstep
