// SPDX-License-Identifier: Apache-2.0
//
// Lets several ranks share one device with NCCL before 2.30, which refuses it: NCCL compares the devices of
// one host, so each rank pretends to be a separate host, and data goes over sockets. Results of all
// collectives are right; NVLink is not used, and times are meaningless.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct EnvironmentVariable {
  std::string name;
  std::string value;
  bool forced = false;  // replaces a value that the user has set, which would not work
};

struct SharingRank {
  int rank = 0;
  int nodes = 1;
  int max_ctas = 0;  // as requested; 0: a number with which ranks share a device well
};

// NCCL reads these variables once per process: set them before its first call.
std::vector<EnvironmentVariable> sharing_environment(const SharingRank& rank);

}  // namespace lockstep
