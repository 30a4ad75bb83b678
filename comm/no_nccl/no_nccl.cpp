// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl.h"
#include "core/error.h"

namespace lockstep {

std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<MpiSession>, Device device,
                                                     Communicator&, const DeviceCommunicatorOptions&) {
  throw ConfigError(
      fmt::format("ranks cannot communicate on {}: Lockstep was built without NCCL. Configure with "
                  "-DLOCKSTEP_CUDA=ON on a machine with NCCL, or set world.device = \"cpu\"",
                  to_string(device)));
}

std::string nccl_version() { return {}; }

}  // namespace lockstep
