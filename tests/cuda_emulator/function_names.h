// SPDX-License-Identifier: Apache-2.0
//
// Names of functions by their addresses, for messages.
#pragma once

namespace lockstep::emulator {

// The name from the symbol table without parameters: "lockstep::reverse_kernel<true>"; "an emulated kernel"
// if the program is stripped. The result is valid until the process ends.
const char* name_of_function(const void* function);

}  // namespace lockstep::emulator
