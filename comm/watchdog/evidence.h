// SPDX-License-Identifier: Apache-2.0
//
// Evidence that a rank collects when a job hangs, as lines of text: the stacks of its threads, and the state
// of another process of its machine that cannot answer.
#pragma once

#include <string>

namespace lockstep {

std::string own_stacks();
std::string seen_of(const std::string& process_number);

}  // namespace lockstep
