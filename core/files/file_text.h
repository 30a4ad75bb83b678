// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep {

// The bytes of a file from this one on; empty if the file cannot be read.
inline std::string file_text(const std::filesystem::path& path, std::uintmax_t from = 0) {
  std::ifstream file(path, std::ios::binary);
  if (from > 0) file.seekg(static_cast<std::streamoff>(from));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace lockstep
