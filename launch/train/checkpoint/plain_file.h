// SPDX-License-Identifier: Apache-2.0
//
// Reads files of a checkpoint or a run that may be untrusted: regular files only, of limited size, without
// following a symbolic link in the last part of the path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

// Size in bytes. Throws DataError if the path is missing or not a regular file (a symbolic link, a pipe),
// IoError if the system reports an error.
std::uint64_t plain_file_bytes(const std::filesystem::path& path);
// The whole file. Throws the same errors, and DataError before reading if it has more than `most` bytes.
std::string read_plain_file(const std::filesystem::path& path, std::uint64_t most);

}  // namespace lockstep
