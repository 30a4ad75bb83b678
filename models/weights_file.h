// SPDX-License-Identifier: Apache-2.0
//
// WeightsFile: the tensors of a safetensors file under the names that a network has for them, as fp32.
// Whoever wrote the file may have wrapped the network (PyTorch's DistributedDataParallel puts "module."
// before every name) and may have stored fp16 or bf16.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"
#include "core/state.h"

namespace lockstep {

class WeightsFile {
 public:
  // wanted: the network's state, by which a prefix of its own is told from a wrapper's. Throws IoError,
  // DataError.
  WeightsFile(const std::filesystem::path& path, std::span<const StateTensor> wanted);

  std::span<const SafetensorsEntry> entries() const { return reader_.entries(); }
  // Without what a wrapper put before it.
  std::string_view name_of(const SafetensorsEntry& entry) const {
    return std::string_view(entry.name).substr(prefix_.size());
  }
  // Throws DataError if there is none, or it has another shape or a type that is not read.
  const SafetensorsEntry& matching(const StateTensor& tensor) const;
  // The tensor's values, in its shape's order.
  std::vector<float> read(const SafetensorsEntry& entry);
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
  SafetensorsReader reader_;
  std::string prefix_;
};

}  // namespace lockstep
