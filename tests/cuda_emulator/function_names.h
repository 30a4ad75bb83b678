// SPDX-License-Identifier: Apache-2.0
//
// Names of functions by their addresses, for messages.
#pragma once

namespace lockstep::emulator {

// As the linker's table of symbols has it, without parameters: "lockstep::reverse_kernel<true>"; "an emulated
// kernel" where the program has been stripped. Lives as long as the process.
const char* name_of_function(const void* function);

}  // namespace lockstep::emulator
