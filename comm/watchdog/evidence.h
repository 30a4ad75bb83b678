// SPDX-License-Identifier: Apache-2.0
//
// What a rank can tell when a job hangs: where its own threads stand, and what its machine knows of a process
// that cannot say anything itself. Lines of text.
#pragma once

#include <string>

namespace lockstep {

std::string own_stacks();
std::string seen_of(const std::string& process_number);

}  // namespace lockstep
