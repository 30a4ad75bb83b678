// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "core/device.h"
#include "core/error.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"
#include "core/system/wrapped_text.h"
#include "core/text/units.h"
#include "kernels/backend.h"
#include "kernels/library_versions.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config.h"
#include "launch/program/devices/cores.h"
#include "launch/program/devices/device_choice.h"
#include "launch/program/devices/device_use.h"
#include "launch/program/devices/kernel_cache.h"
#include "launch/program/devices/kernel_table.h"
#include "launch/program/version.h"

namespace lockstep {
namespace {

struct InfoFlags {
  bool kernels = false;
};

void info_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<InfoFlags>();
  app.add_flag("--kernels", flags.kernels,
               "Print only the kernels in this user's cache folder (kernels.cache=auto): for each shape and "
               "direction the fastest kernel, its time, how much faster it is than the first candidate, when "
               "it was chosen, and whether other processes disturbed the choice");
}

void print_kernels() {
  const std::filesystem::path folder = default_kernel_cache();
  const std::vector<KeptKernels> kept = kept_kernels(folder);
  if (!kept.empty()) return print_fitted(kernel_table(kept));
  if (folder.empty())
    return print_fitted("no cache of kernel choices: neither XDG_CACHE_HOME nor HOME is set");
  print_fitted(printable(fmt::format(
      "no kernel choices in {}; a training with kernels.choose=time times kernels and keeps them there: "
      "lockstep train CONFIG",
      folder.string())));
}

const char* extent_of(const CudaDevice& device) {
  return device.is_slice() ? "a MIG slice" : is_vgpu(device) ? "a vGPU" : "a whole GPU";
}

std::string gpu_line(const CudaDevice& device, const NodeClaims& claims) {
  const std::string unused = "not used: " + device.unusable;
  if (device.uuid.empty()) return fmt::format("{}  {}", device.name, unused);
  const std::optional<std::string> holder = holder_of_gpu(claims, device.uuid);
  return fmt::format("{}  {:.1f} GiB  compute capability {}.{}  {}  {}, {}", device.name,
                     static_cast<double>(device.memory_bytes) / kGiB, device.compute_capability / 10,
                     device.compute_capability % 10, device.uuid, extent_of(device),
                     !device.unusable.empty() ? unused
                     : holder                 ? "claimed by a Lockstep job: " + *holder
                                              : "not claimed by a Lockstep job");
}

int run_info(const Command& command) {
  if (command.own<InfoFlags>().kernels) {
    print_kernels();
    return exit_code::done;
  }
  const auto print = [](const char* name, const std::string& text) {
    print_beside(fmt::format("{:<9}", name), text);
  };
  fmt::print("Lockstep {}\n", kVersion);
  print("cpu",
        fmt::format(
            "{} cores{}; {}", machine_cores(),
            usable_cores() < machine_cores() ? fmt::format(", {} for this process", usable_cores()) : "",
            backend_for(Device{}).describe()));
  print("mpi", mpi_version());
  const CudaStatus cuda = cuda_status();
  print("cuda", fmt::format("{}; {}", cuda.built ? "built in" : "not built in", cuda.message));
  if (cuda.built) print("", fmt::format("{}, NCCL {}", cuda_library_versions(), nccl_version()));
  const NodeClaims claims;
  for (std::size_t i = 0; i < cuda.devices.size(); ++i)
    print_beside(fmt::format("  cuda:{}  ", i), gpu_line(cuda.devices[i], claims));
  if (const std::optional<std::string> mps = mps_folder(); mps && !cuda.devices.empty())
    print("mps", fmt::format("a daemon in {} lets processes compute on these GPUs at the same time", *mps));
  const std::string presets = fmt::format("{}", fmt::join(preset_names(command.registry), ", "));
  fmt::print("presets  {}\n", wrapped(presets, {.indent = 9}).substr(9));
  return exit_code::done;
}

}  // namespace

extern const CommandEntry info_command = {
    .name = "info",
    .description = "Print the parts of this build and the devices of this machine",
    .example = "lockstep info\nlockstep info --kernels",
    .flags = info_flags,
    .alone = run_info};

}  // namespace lockstep
