// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "core/device.h"
#include "core/error.h"
#include "core/wrapped_text.h"
#include "kernels/backend.h"
#include "kernels/library_versions.h"
#include "launch/commands.h"
#include "launch/config.h"
#include "launch/terminal.h"
#include "launch/version.h"

namespace lockstep {
namespace {

int run_info(const Command& command) {
  const auto print = [](const char* name, const std::string& text) {
    print_beside(fmt::format("{:<9}", name), text);
  };
  fmt::print("Lockstep {}\n", kVersion);
  print("cpu",
        fmt::format("{} cores; {}", std::thread::hardware_concurrency(), backend_for(Device{}).describe()));
  print("mpi", mpi_version());
  const CudaStatus cuda = cuda_status();
  print("cuda", fmt::format("{}; {}", cuda.built ? "built in" : "not built in", cuda.message));
  if (cuda.built) print("", fmt::format("{}, NCCL {}", cuda_library_versions(), nccl_version()));
  for (std::size_t i = 0; i < cuda.devices.size(); ++i) {
    const CudaDevice& device = cuda.devices[i];
    print_beside(fmt::format("  cuda:{}  ", i),
                 fmt::format("{}  {:.1f} GiB  compute capability {}.{}  {}  {}", device.name,
                             static_cast<double>(device.memory_bytes) / (1024.0 * 1024.0 * 1024.0),
                             device.compute_capability / 10, device.compute_capability % 10, device.uuid,
                             device.is_slice() ? "a MIG slice" : "a whole GPU"));
  }
  const std::string presets = fmt::format("{}", fmt::join(preset_names(command.registry), ", "));
  fmt::print("presets  {}\n", wrapped(presets, {.indent = 9}).substr(9));
  return exit_code::done;
}

}  // namespace

extern const CommandEntry info_command = {
    .name = "info",
    .description = "Print what was built in and what was found on this machine",
    .example = "lockstep info",
    .alone = run_info};

}  // namespace lockstep
