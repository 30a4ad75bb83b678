// SPDX-License-Identifier: Apache-2.0
//
// How much the GPUs of this machine are used, by whomever, and what else there is to know of how they are
// shared: a daemon that lets processes compute at the same time (MPS), a machine that is virtual (vGPU).
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>

#include "core/device.h"

namespace lockstep {

// Of each device by its UUID: the tenths of time in which it computes, by NVML, and the tenths of its memory
// that are taken, together, 0 to 20. So coarse that devices of which nobody makes use are alike. Without NVML
// nothing, which rank 0 says.
std::map<std::string, int> use_of_devices(std::span<const CudaDevice> devices);

// Says that somebody else uses the device that this rank takes, if they use much of it.
void warn_of_use(const std::string& uuid, int use);

// The folder of the MPS daemon that serves this process, by CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps;
// nothing where none runs there. Waits for nobody.
std::optional<std::string> mps_folder();

// Whether the device is a part of one, given to this virtual machine; false where NVML does not tell.
bool is_vgpu(const CudaDevice& device);

// Why times and utilization on the device are not this process's alone, for people; empty: nothing says so.
std::string told_of_sharing(const CudaDevice& device);

}  // namespace lockstep
