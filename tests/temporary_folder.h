// SPDX-License-Identifier: Apache-2.0
//
// A folder for the files of a test. It is removed at the end of the test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <stdlib.h>
#include <unistd.h>

#include "core/error.h"

namespace lockstep {

using Bytes = std::vector<std::uint8_t>;

class TemporaryFolder {
 public:
  // PARENT/lockstep_NAME_XXXXXX
  explicit TemporaryFolder(const std::string& name = "test",
                           const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  // A forked child does not remove the folder of its parent.
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Creates the file, and the folders in its name.
  void write(const std::string& name, const Bytes& bytes) const;
  void remove(const std::string& name) const { std::filesystem::remove(path_ / name); }

 private:
  std::filesystem::path path_;
  pid_t maker_ = getpid();
};

inline TemporaryFolder::TemporaryFolder(const std::string& name, const std::filesystem::path& parent) {
  std::string pattern = (parent / ("lockstep_" + name + "_XXXXXX")).string();
  CHECK(mkdtemp(pattern.data()) != nullptr, "{}", pattern);
  path_ = pattern;
}

inline TemporaryFolder::~TemporaryFolder() {
  if (getpid() != maker_) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

inline void TemporaryFolder::write(const std::string& name, const Bytes& bytes) const {
  std::filesystem::create_directories((path_ / name).parent_path());
  std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  CHECK(file.good(), "{}", name);
}

}  // namespace lockstep
