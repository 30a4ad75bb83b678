// SPDX-License-Identifier: Apache-2.0
//
// Files of a checkpoint, or of a run, as they are found: plain ones, of the size that is told for them, and
// nothing that leads elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

// In bytes. Throws DataError for what is no regular file (a symbolic link, a pipe, nothing), IoError where
// the system does not say.
std::uint64_t plain_file_bytes(const std::filesystem::path& path);
// All of it. Throws the same, and DataError for more than `most` bytes, before any is read.
std::string read_plain_file(const std::filesystem::path& path, std::uint64_t most);

}  // namespace lockstep
