// SPDX-License-Identifier: Apache-2.0
//
// A folder for the files a test makes, which ends with the test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

using Bytes = std::vector<std::uint8_t>;

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The name may have folders in it, which are made.
  void write(const std::string& name, const Bytes& bytes) const;
  void remove(const std::string& name) const;

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
