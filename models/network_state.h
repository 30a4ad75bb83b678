// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads a network's state: plain fp32 tensors under PyTorch's names, independent of the kernels'
// layouts, and safetensors files of them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/safetensors.h"
#include "models/network.h"
#include "models/state_copy.h"

namespace lockstep {

// Copy one tensor between its layout and plain host memory of shape().elements(), and wait for the stream.
// Neither function takes memory of the device, which may have none left: the host converts the layouts of a
// GPU.
void write_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<const float> plain);
void read_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<float> plain);
// Converts a tensor in host memory from its layout, which is a GPU's or has no padding, to the plain one.
void make_plain(const Layout& layout, std::span<const float> from, std::span<float> to);

// Restores the network's state. Throws DataError as StateWriter does, and for a replicated parameter in
// `saved` that the network does not have; a tensor of another owner has another suffix ("fc.weight.ema").
void restore_network(Network& network, const StateCopy& saved);

// The replicated part of a network's state, in visiting order, for use outside this job.
class StateSnapshot {
 public:
  explicit StateSnapshot(Network& network);

  using Entry = StateCopy::Tensor;
  const std::vector<Entry>& entries() const { return entries_; }
  // Writes a safetensors file. `parameters` is the type of parameters, rounded to nearest even; running
  // statistics stay fp32. A parameter with a finite value that overflows the type stays fp32, too; save()
  // returns the names of these. Throws IoError.
  std::vector<std::string> save(const std::filesystem::path& path, const SafetensorsOptions& options = {},
                                DType parameters = DType::f32) const;

 private:
  std::vector<Entry> entries_;
  std::vector<bool> is_statistic_;  // by entry
};

// When Network::head() keeps its initial parameters instead of those of the file.
enum class ResetHead {
  never,      // a head for another number of classes is an error
  always,     // the file's head is not read
  automatic,  // if its number of classes is not the network's
};
inline constexpr std::string_view kResetHeadWords[] = {"false", "true", "auto"};
constexpr std::span<const std::string_view> words_of(ResetHead) { return kResetHeadWords; }

// Reads all tensors of the network's state from a WeightsFile. The file's running statistics are used for
// both training and evaluation. Throws as WeightsFile and its matching() do; on an error nothing has changed.
// Returns a note, for the line that names the file, if the head keeps its initial parameters; else an empty
// text.
std::string load_state(Network& network, const std::filesystem::path& path,
                       ResetHead reset_head = ResetHead::never);

}  // namespace lockstep
