// SPDX-License-Identifier: Apache-2.0
//
// What a rank's memory is planned to hold, part by part, and what its process has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep {

class Training;

struct MemoryPart {
  std::string name;  // "activations"
  std::size_t bytes = 0;
  std::string note;      // for people
  bool on_host = false;  // of a rank on a GPU: in the host's memory
};

// Those that take any. Libraries take more, of which nothing is known here.
std::vector<MemoryPart> memory_parts(Training& training, const Communicator& communicator);

// Of this process, in memory now; 0 where the system does not tell.
std::int64_t resident_bytes();

}  // namespace lockstep
