// SPDX-License-Identifier: Apache-2.0
//
// Checks that every rank holds the same data and model. Training itself does not detect differences:
// gradients of different models can be summed, too. `host` is a communicator of host memory.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "models/network.h"

namespace lockstep {

// Text that identifies the data, independent of their folder.
std::string describe_data(const Dataset& train, const Dataset& test);

// Collective. Throws an agreed DataError that names the ranks whose data differ from rank 0's. path:
// data.path, for the message.
void require_same_data(Communicator& host, const Dataset& train, const Dataset& test,
                       const std::string& path);

// Collective. Copies rank 0's parameters and running statistics to every rank, over the communicator of the
// network's device. All ranks must have planned the same layouts, which GradientBuckets checks. No work on
// the network may be under way.
void broadcast_state(Communicator& communicator, Network& network);

// Collective. Throws an agreed Error that names the ranks whose digest (digest.h) differs from rank 0's.
void require_same_state(Communicator& host, const std::string& digest);

}  // namespace lockstep
