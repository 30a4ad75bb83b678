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
  // In a type other than fp32 that holds for parameters alone, rounded to the nearest, ties to even; running
  // statistics stay fp32. A parameter with a value that the type would make infinite stays fp32, too, and is
  // returned by name. Throws IoError.
  std::vector<std::string> save(const std::filesystem::path& path,
                                const std::map<std::string, std::string>& metadata = {},
                                DType parameters = DType::f32) const;

 private:
  std::vector<Entry> entries_;
  std::vector<bool> is_statistic_;  // by entry
};

struct LoadOptions {
  // The parameters of Network::head() stay as they are, whatever the file has of them: it may be another's.
  bool keeps_head = false;
};

// Reads every tensor of the network's state from a safetensors file, in fp32, fp16 or bf16; running
// statistics, training's as well as evaluation's, from the one there is. A prefix that a wrapper gave to all
// names ("module.") is taken off. Tensors the network does not have are refused, but for PyTorch's
// num_batches_tracked counters. Nothing is changed unless everything fits. Throws IoError, DataError (naming
// the tensor, its shape in the file and in the network).
void load_state(Network& network, const std::filesystem::path& path, const LoadOptions& options = {});

}  // namespace lockstep
