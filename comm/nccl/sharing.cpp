// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/sharing.h"

#include <fmt/format.h>

namespace lockstep {

std::vector<EnvironmentVariable> sharing_environment(const SharingRank& rank) {
  std::vector<EnvironmentVariable> variables = {
      {.name = "NCCL_HOSTID", .value = fmt::format("r{}", rank.rank), .forced = true},
      {.name = "NCCL_NET", .value = "Socket"},
      {.name = "NCCL_NVLS_ENABLE", .value = "0"},
      {.name = "NCCL_MNNVL_ENABLE", .value = "0"},
  };
  if (rank.nodes == 1) variables.push_back({.name = "NCCL_SOCKET_IFNAME", .value = "lo"});
  // NCCL prefers this variable to maxCTAs of the communicator's configuration.
  if (rank.max_ctas == 0) variables.push_back({.name = "NCCL_MAX_CTAS", .value = "2"});
  return variables;
}

}  // namespace lockstep
