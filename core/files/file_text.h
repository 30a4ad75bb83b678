// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace lockstep {

// The absolute path of the file itself, without symbolic links. The file may be missing.
inline std::filesystem::path resolved_path(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path);
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : real;
}

// The bytes of a file from this one on, as far as they can be read; empty for a directory.
inline std::string file_text(const std::filesystem::path& path, std::uintmax_t from = 0) {
  std::ifstream file(path, std::ios::binary);
  if (from > 0) file.seekg(static_cast<std::streamoff>(from));
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace lockstep
