// SPDX-License-Identifier: Apache-2.0
//
// How several ranks get to use one device with an NCCL that refuses it (before 2.30): NCCL compares devices
// within a host, so each rank passes for a host of its own, and data goes over sockets. Covers every
// collective's result, but neither NVLink nor its times.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct EnvironmentVariable {
  std::string name;
  std::string value;
  bool forced = false;  // the user's own value would not work
};

struct SharingRank {
  int rank = 0;
  int nodes = 1;
  int max_ctas = 0;  // asked for; 0: as few as share a device well
};

// Read by NCCL once per process: to be set before its first call.
std::vector<EnvironmentVariable> sharing_environment(const SharingRank& rank);

}  // namespace lockstep
