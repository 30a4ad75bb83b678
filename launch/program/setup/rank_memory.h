// SPDX-License-Identifier: Apache-2.0
//
// The planned memory of a rank, by part.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep {

class TrainingSetup;

struct MemoryPart {
  std::string name;  // "activations"
  std::size_t bytes = 0;
  std::string note;      // for the user
  bool on_host = false;  // in host memory although the rank is on a GPU
};

// Parts of more than 0 bytes. Libraries take more, which is not counted here.
std::vector<MemoryPart> memory_parts(TrainingSetup& training, const Communicator& communicator);

}  // namespace lockstep
