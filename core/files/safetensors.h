// SPDX-License-Identifier: Apache-2.0
//
// Tensors in a file, in the safetensors format (huggingface/safetensors): a JSON header, then raw
// little-endian data. Files are untrusted: every length, offset and shape is checked before memory is
// allocated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files/atomic_file.h"
#include "core/tensor/tensor.h"

namespace lockstep {

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as in the file: "F32", "I64", ...
  std::optional<DType> dtype;  // none if Lockstep has no such type
  Shape shape;
  std::uint64_t begin = 0;  // bytes [begin, end) of the data section
  std::uint64_t end = 0;
};

class SafetensorsReader {
 public:
  // Follows symbolic links. Throws IoError if the file cannot be read, DataError (file, offset, reason) if it
  // is invalid; for a file of torch.save the message explains how to convert it.
  explicit SafetensorsReader(const std::filesystem::path& path);

  std::span<const SafetensorsEntry> entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // destination.size() must equal the entry's size in bytes.
  void read(const SafetensorsEntry& entry, std::span<std::byte> destination);

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  std::uint64_t data_offset_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // host memory, dense
};

// Receives all bytes of a file in order, as they are written.
using WriteTap = std::function<void(const void* data, std::size_t bytes)>;

struct SafetensorsOptions {
  std::map<std::string, std::string> metadata = {};
  Links links = Links::follow;  // see AtomicFile
  WriteTap tap = {};
};
// Writes an AtomicFile: path holds the old file or the complete new one. Throws IoError.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const SafetensorsOptions& options = {});

}  // namespace lockstep
