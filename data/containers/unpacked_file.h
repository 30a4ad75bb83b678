// SPDX-License-Identifier: Apache-2.0
//
// Unpacks a gzip file once, beside it: packed files have no random access.
#pragma once

#include <filesystem>

namespace lockstep {

// Returns the path itself if the file is not gzip (by its first bytes), else the path of the unpacked file.
// Its name contains the packed file's size and modification time, so that a changed file is unpacked again.
// The log then names the earlier copies (earlier_copies() in data/containers/split_files.h).
// If several processes or threads call it at once, one unpacks the file while the rest wait; where files
// cannot be locked, each unpacks it. Thread-safe. Throws IoError, with what to do, if it cannot be written;
// Error with exit_code::io if reading fails; DataError for a damaged file.
std::filesystem::path unpacked_file(const std::filesystem::path& path);

}  // namespace lockstep
