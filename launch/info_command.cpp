// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "core/device.h"
#include "core/error.h"
#include "kernels/backend.h"
#include "kernels/library_versions.h"
#include "launch/commands.h"
#include "launch/config.h"
#include "launch/version.h"
#include "launch/wrapped_text.h"

namespace lockstep {

int run_info() {
  fmt::print("Lockstep {}\n", kVersion);
  fmt::print("cpu      {} cores; {}\n", std::thread::hardware_concurrency(),
             backend_for(Device{}).describe());
  fmt::print("mpi      {}\n", mpi_version());
  const CudaStatus cuda = cuda_status();
  fmt::print("cuda     {}; {}\n", cuda.built ? "built in" : "not built in", cuda.message);
  if (cuda.built) fmt::print("         {}, NCCL {}\n", cuda_library_versions(), nccl_version());
  for (std::size_t i = 0; i < cuda.devices.size(); ++i) {
    const CudaDevice& device = cuda.devices[i];
    fmt::print("  cuda:{}  {}  {:.1f} GiB  compute capability {}.{}  {}  {}\n", i, device.name,
               static_cast<double>(device.memory_bytes) / (1024.0 * 1024.0 * 1024.0),
               device.compute_capability / 10, device.compute_capability % 10, device.uuid,
               device.is_slice() ? "a MIG slice" : "a whole GPU");
  }
  const std::string presets = fmt::format("{}", fmt::join(preset_names(), ", "));
  fmt::print("presets  {}\n", wrapped(presets, {.indent = 9}).substr(9));
  return exit_code::done;
}

}  // namespace lockstep
