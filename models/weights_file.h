// SPDX-License-Identifier: Apache-2.0
//
// WeightsFile: the tensors of a safetensors file under the names that a network has for them, as fp32.
// Whoever wrote the file may have wrapped the network (PyTorch's DistributedDataParallel puts "module."
// before every name), may have kept other things beside it, and may have stored fp16 or bf16.
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
  // wanted: the network's state, by whose names a wrapper's prefix is found. Tensors that lie outside of the
  // wrapped network, counters, and what optimizers and losses keep are ignored, which an info line tells.
  // Throws IoError; DataError for an unsound file, and for a tensor that the network does not have.
  WeightsFile(const std::filesystem::path& path, std::span<const StateTensor> wanted);

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
  bool is_of_network(const SafetensorsEntry& entry) const;

  std::filesystem::path path_;
  SafetensorsReader reader_;
  std::string prefix_;
};

}  // namespace lockstep
