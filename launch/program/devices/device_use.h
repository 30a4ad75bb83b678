// SPDX-License-Identifier: Apache-2.0
//
// Utilization of this machine's GPUs by any process, and how they are shared: by MPS (a daemon that lets
// processes compute concurrently), or as a vGPU in a virtual machine.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>

#include "core/device.h"

namespace lockstep {

// Returns for each UUID the tenths of busy time plus the tenths of memory in use, by NVML: 0 to 20. Coarse,
// so that unused devices compare equal. Unusable devices are left out. Empty without NVML, which rank 0 logs.
std::map<std::string, int> use_of_devices(std::span<const CudaDevice> devices);

// Warns if other processes use this rank's device much (`use` of 5 or more).
void warn_of_use(const std::string& uuid, int use);

// The pipe folder of the running MPS daemon that serves this process: CUDA_MPS_PIPE_DIRECTORY, else
// /tmp/nvidia-mps; empty if none runs there. Never blocks.
std::optional<std::string> mps_folder();

// True for a vGPU: a part of a GPU assigned to this virtual machine. False if NVML does not report it.
bool is_vgpu(const CudaDevice& device);

// Explains, for users, why times and utilization of the device may include other processes; empty without MPS
// and vGPU.
std::string told_of_sharing(const CudaDevice& device);

}  // namespace lockstep
