// SPDX-License-Identifier: Apache-2.0
//
// The command that started this process.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Without these flags, as "--flag VALUE" or "--flag=VALUE".
std::vector<std::string> own_arguments(std::initializer_list<std::string_view> without = {});
// Quotes a command for a shell, with "redacted" for values of secret keys, also misspelt ones.
std::string shell_command(const std::vector<std::string>& words);
// For a command that the user is to run: removes the settings of secret keys, which are not printed. Returns
// a hint that names them, to print with the command; empty if there are none.
std::string remove_secrets(std::vector<std::string>& words);

}  // namespace lockstep
