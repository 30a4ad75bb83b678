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
#include "models/state_copy.h"

namespace lockstep {

// Memory of the device through which these tensors go, one after the other: as large as the largest whose
// layout is not plain, none where all are.
Buffer staging_for(std::span<const StateTensor> state, Device device);
// Makes it large enough for the tensor, too.
void grow_staging(Buffer& staging, const StateTensor& tensor, Device device);
// Enqueue one tensor's way between its layout on the device and plain host memory of shape().elements(),
// which must stay as it is until the stream has done it.
void write_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<const float> plain,
                 const Buffer& staging);
void read_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<float> plain,
                const Buffer& staging);

// What ranks share of a network's state, in the order in which it shows it: a network to be used elsewhere.
class StateSnapshot {
 public:
  explicit StateSnapshot(Network& network);

  using Entry = StateCopy::Tensor;
  const std::vector<Entry>& entries() const { return entries_; }
  // Throws IoError.
  void save(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata = {}) const;

 private:
  std::vector<Entry> entries_;
};

// Reads every tensor of the network's state from a safetensors file; running statistics, training's as well
// as evaluation's, from the one there is. Tensors the network does not have are refused, but for PyTorch's
// num_batches_tracked counters. Nothing is changed unless everything fits. Throws IoError, DataError (naming
// the tensor, its shape in the file and in the network).
void load_state(Network& network, const std::filesystem::path& path);

}  // namespace lockstep
