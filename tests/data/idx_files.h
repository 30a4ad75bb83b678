// SPDX-License-Identifier: Apache-2.0
//
// IDX files made by the tests: bytes as the format wants them, plain or gzip, in a folder that ends with the
// test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

using Bytes = std::vector<std::uint8_t>;

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const Bytes& bytes) const;
  void remove(const std::string& name) const;

 private:
  std::filesystem::path path_;
};

Bytes idx_images(std::uint32_t count, std::uint32_t height, std::uint32_t width, const Bytes& pixels);
Bytes idx_colour_images(std::uint32_t count, const ImageShape& shape, const Bytes& pixels);
Bytes idx_labels(const Bytes& labels);
Bytes gzip(const Bytes& bytes);

}  // namespace lockstep
