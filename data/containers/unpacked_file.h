// SPDX-License-Identifier: Apache-2.0
//
// Files that gzip has packed, unpacked once beside themselves: within a packed file nothing can be read at
// random.
#pragma once

#include <filesystem>

namespace lockstep {

// The path itself where its first bytes are not gzip's; else that of the unpacked file, whose name tells the
// packed one's size and time, so that it is made again when that changes. Throws IoError where it cannot be
// written, with what to do; DataError for a damaged file.
std::filesystem::path unpacked_file(const std::filesystem::path& path);

}  // namespace lockstep
