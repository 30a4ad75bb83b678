// SPDX-License-Identifier: Apache-2.0
//
// Every rank holds the same data and the same model, from the first step to the last. Nothing in training
// finds out by itself where that is not so: gradients of different models add up as well as those of one.
// `host` is a communicator of host memory.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "models/network.h"

namespace lockstep {

// What tells these data from others, whatever folder they are in.
std::string describe_data(const Dataset& train, const Dataset& test);

// Collective. Throws an agreed DataError naming the ranks whose data are not rank 0's; path: data.path.
void require_same_data(Communicator& host, const Dataset& train, const Dataset& test,
                       const std::string& path);

// Collective. Rank 0's parameters and running statistics on every rank, sent by the communicator of the
// network's device. All must have planned the same layouts, which GradientBuckets sees to, and no work on
// the network may be under way.
void broadcast_state(Communicator& communicator, Network& network);

// Collective. Throws an agreed Error naming the ranks whose digest (digest.h) of trained state is not rank
// 0's.
void require_same_state(Communicator& host, const std::string& digest);

}  // namespace lockstep
