// SPDX-License-Identifier: Apache-2.0
//
// A hash of what training has changed and ranks share: parameters, running statistics as evaluation reads
// them, optimizer state and its number of steps, and the average of parameters. Two runs that end with the
// same digest ended with the same bits.
#pragma once

#include <string>

#include "models/network.h"
#include "models/optimizer.h"
#include "models/weight_average.h"

namespace lockstep {

// 32 hexadecimal digits of XXH3-128 over names, shapes and bytes. average: of parameters; null: there is
// none.
std::string digest(Network& network, Optimizer& optimizer, WeightAverage* average = nullptr);

}  // namespace lockstep
