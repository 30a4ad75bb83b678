// SPDX-License-Identifier: Apache-2.0
//
// Process: identifies a process of this machine, even if its number is reused.
#pragma once

#include <cstdint>

namespace lockstep::emulator {

struct Process {
  std::int64_t number = 0;
  std::uint64_t started = 0;  // start time in the kernel's ticks
};

Process this_process();
// False as soon as the process has been killed or has ended, even if its parent has not waited for it yet.
bool alive(const Process& process);
// NCCL's identity of this process's host: a hash of NCCL_HOSTID or of the host name. Read once, like in NCCL.
std::uint64_t host_identity();

}  // namespace lockstep::emulator
