// SPDX-License-Identifier: Apache-2.0
//
// The command that started this process.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

std::vector<std::string> own_arguments();
// As a shell reads it.
std::string shell_word(const std::string& word);
// All of them, as a shell reads them, with "redacted" for values of keys that are secret.
std::string own_command();

}  // namespace lockstep
