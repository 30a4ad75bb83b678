// SPDX-License-Identifier: Apache-2.0
//
// Checks that every rank holds the same data and model. Training itself does not detect differences:
// gradients of different models can be summed, too. `host` is a communicator of host memory.
#pragma once

#include <optional>
#include <string>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "models/network.h"

namespace lockstep {

// Text that identifies the data, independent of their folder.
std::string describe_data(const Dataset& train, const Dataset& test);
// Returns true if `text`, of describe_data(), is of this training set.
bool is_described_by(const std::string& text, const Dataset& train);

// Collective. Throws an agreed DataError that names the ranks whose data differ from rank 0's. path:
// data.path, for the message.
void require_same_data(Communicator& host, const Dataset& train, const Dataset& test,
                       const std::string& path);

// Collective. Copies rank 0's parameters and running statistics to every rank, over the communicator of the
// network's device. All ranks must have planned the same layouts, which GradientBuckets checks. No work on
// the network may be under way.
void broadcast_state(Communicator& communicator, Network& network);

// Ranks that hold different parameters.
struct Disagreement {
  std::string text;      // "rank 2 has other parameters than the other 3 ranks"
  std::string suspects;  // "rank 2"; "all ranks" if no value is that of more than half of the ranks
};

// Collective. Compares a text that identifies each rank's parameters; nullopt if all ranks' texts are equal.
// Blames only ranks that differ from more than half of the ranks. Without such a majority the text names all
// groups of equal ranks.
std::optional<Disagreement> find_disagreement(Communicator& host, const std::string& mine);

// Collective. Throws an agreed Error with the Disagreement of the ranks' digests (digest.h), if any.
void require_same_state(Communicator& host, const std::string& digest);

}  // namespace lockstep
