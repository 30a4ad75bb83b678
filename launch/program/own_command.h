// SPDX-License-Identifier: Apache-2.0
//
// The command that started this process.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

std::vector<std::string> own_arguments();
// Quotes a command for a shell, with "redacted" for values of secret keys.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace lockstep
