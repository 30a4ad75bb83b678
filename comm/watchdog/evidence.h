// SPDX-License-Identifier: Apache-2.0
//
// Evidence that a rank collects when a job hangs, as lines of text: its own threads' stacks, and what its
// machine knows of a process that cannot answer itself.
#pragma once

#include <string>

namespace lockstep {

std::string own_stacks();
std::string seen_of(const std::string& process_number);

}  // namespace lockstep
