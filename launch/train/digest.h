// SPDX-License-Identifier: Apache-2.0
//
// A hash of the trained state that ranks share: parameters, running statistics for evaluation, optimizer
// state and step count, and averaged parameters. Two runs with the same digest ended with the same bits.
#pragma once

#include <string>

#include "models/network.h"
#include "models/optimizer.h"
#include "models/weight_average.h"

namespace lockstep {

// 32 hexadecimal digits of XXH3-128 over names, shapes and bytes. average: averaged parameters; null: none.
std::string digest(Network& network, Optimizer& optimizer, WeightAverage* average = nullptr);
// The same of the network alone.
std::string digest(Network& network);

}  // namespace lockstep
