// SPDX-License-Identifier: Apache-2.0
//
// A separate folder for each test, and safetensors files written byte by byte: tests can make files that the
// writer never makes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "core/files/file_text.h"
#include "tests/temporary_folder.h"

namespace lockstep {

class SafetensorsTest : public testing::Test {
 protected:
  static std::string file_of(const std::string& header, const std::string& data = "") {
    const std::uint64_t bytes = header.size();
    return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + header + data;
  }
  void put(const std::string& content) const {
    std::filesystem::remove(path_);  // ext4 writes a file to the disk if it is overwritten
    std::ofstream(path_, std::ios::binary) << content;
  }
  std::string content() const { return file_text(path_); }

  const TemporaryFolder temporary_{"safetensors"};
  const std::filesystem::path folder_ = temporary_.path(), path_ = folder_ / "state.safetensors";
};

}  // namespace lockstep
