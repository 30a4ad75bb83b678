// SPDX-License-Identifier: Apache-2.0
//
// WeightsFile: the tensors of a safetensors file under a network's names, as fp32. The file may come from a
// wrapped network (PyTorch's DistributedDataParallel adds "module." to every name), may hold other objects,
// and may store fp16 or bf16.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/safetensors.h"
#include "core/state.h"

namespace lockstep {

// True if the layer has this parameter or statistic, by its name: "fc" has "fc.weight".
inline bool belongs_to(std::string_view layer, std::string_view tensor) {
  return tensor.starts_with(layer) && tensor.substr(layer.size()).starts_with('.');
}

class WeightsFile {
 public:
  // wanted: the network's state; its names identify a wrapper's prefix. Ignores counters, tensors outside the
  // wrapped network, the state of optimizers and losses, and other tensors of the layer `unread` if it is not
  // empty; an info line names the first five, except counters. Throws IoError; DataError for an invalid file
  // or another tensor that the network does not have.
  WeightsFile(const std::filesystem::path& path, std::span<const StateTensor> wanted,
              std::string_view unread = {});

  // The entry's name without the wrapper's prefix.
  std::string_view name_of(const SafetensorsEntry& entry) const {
    return std::string_view(entry.name).substr(prefix_.size());
  }
  // The entry of this name in the network; null if there is none.
  const SafetensorsEntry* find(std::string_view name) const {
    return reader_.find(prefix_ + std::string(name));
  }
  // The entry for the tensor. Throws DataError if there is none, or if its shape differs or its type is not
  // supported.
  const SafetensorsEntry& matching(const StateTensor& tensor) const;
  // The entry's values as fp32, in row-major order.
  std::vector<float> read(const SafetensorsEntry& entry);
  std::string path() const { return path_.string(); }

 private:
  bool is_of_network(const SafetensorsEntry& entry) const;

  std::filesystem::path path_;
  SafetensorsReader reader_;
  std::string prefix_;
};

}  // namespace lockstep
