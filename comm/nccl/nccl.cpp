// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl.h"

#include <cstdlib>

#include "comm/mpi/session.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/configuration.h"
#include "comm/nccl/sharing.h"
#include "core/log.h"

namespace lockstep {

std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<MpiSession> session, Device device,
                                                     Communicator& host,
                                                     const DeviceCommunicatorOptions& options) {
  if (options.share_device) {
    const SharingRank rank{
        .rank = session->placement.rank, .nodes = session->placement.nodes, .max_ctas = options.max_ctas};
    for (const EnvironmentVariable& variable : sharing_environment(rank)) {
      setenv(variable.name.c_str(), variable.value.c_str(), variable.forced ? 1 : 0);
    }
  }
  const auto end_job = [session](const std::string& reason) {
    log::error("{}", reason);
    abort_mpi(*session, session->job->exit_code());
  };
  return std::make_unique<NcclCommunicator>(device, host, options, end_job);
}

std::string nccl_version() { return nccl_version_text(nccl_library_version()); }

}  // namespace lockstep
