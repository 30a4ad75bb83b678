// SPDX-License-Identifier: Apache-2.0
//
// Process: who a process of this machine is, also after its number was given to another.
#pragma once

#include <cstdint>

namespace lockstep::emulator {

struct Process {
  std::int64_t number = 0;
  std::uint64_t started = 0;  // in the kernel's ticks
};

Process this_process();
// False as soon as it has been killed or has ended, though its parent has not waited for it yet.
bool alive(const Process& process);
// What NCCL takes for this process's host: a hash of NCCL_HOSTID, or of the host's name. Read once, as NCCL
// does.
std::uint64_t host_identity();

}  // namespace lockstep::emulator
