// SPDX-License-Identifier: Apache-2.0
//
// A network's state out of and into the world: plain fp32 tensors under PyTorch's names, whatever layouts the
// kernels chose, and safetensors files of them.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/network.h"

namespace lockstep {

// Memory of the device through which these tensors go, one after the other: as large as the largest whose
// layout is not plain, none where all are.
Buffer staging_for(std::span<const StateTensor> state, Device device);
// Enqueue one tensor's way between its layout on the device and plain host memory of shape().elements(),
// which must stay as it is until the stream has done it.
void write_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<const float> plain,
                 const Buffer& staging);
void read_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<float> plain,
                const Buffer& staging);

// A copy of the whole state in plain host memory, in the order of Network::state().
class StateSnapshot {
 public:
  explicit StateSnapshot(Network& network);

  struct Entry {
    std::string name;
    Shape shape;
    std::vector<float> values;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  // Throws IoError.
  void save(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata = {}) const;

 private:
  std::vector<Entry> entries_;
};

// Reads every tensor of the network's state from a safetensors file. Tensors the network does not have are
// refused, but for PyTorch's num_batches_tracked counters. Nothing is changed unless everything fits. Throws
// IoError, DataError (naming the tensor, its shape in the file and in the network).
void load_state(Network& network, const std::filesystem::path& path);

}  // namespace lockstep
