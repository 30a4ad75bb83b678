// SPDX-License-Identifier: Apache-2.0
//
// A Network with its own gradient memory and a fixed batch of generated images, for tests without
// communication.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/network.h"
#include "models/optimizer.h"

namespace lockstep {

// One image of CIFAR-10's size.
inline constexpr GraphInput kCifar{.batch = 1, .height = 32, .width = 32, .channels = 3, .classes = 10};

class NetworkFixture {
 public:
  NetworkFixture(const GraphInput& input, const std::function<void(Graph&)>& build, std::uint64_t seed = 1,
                 Recompute recompute = Recompute::nothing, Precision precision = Precision::fp32,
                 MemorySharing sharing = MemorySharing::planned);

  Network& network() { return *network_; }
  std::span<float> gradients() { return gradients_; }  // in fp32
  std::span<const FlatRange> gradient_ranges() { return ranges_; }
  // All gradients as fp32 in plain order, by parameter name, in any precision.
  std::map<std::string, std::vector<float>> plain_gradients();
  TrainedMemory trained_memory() { return lockstep::trained_memory(*network_, ranges_); }
  Batch input();
  Stream& stream() { return stream_; }

  // The mean loss of the batch in training mode. Updates the statistics that evaluation reads.
  double forward();
  // Forward and backward; gradients() then holds the gradients of the mean loss.
  double forward_backward(Write write = Write::overwrite, GradientListener* listener = nullptr);

 private:
  GraphInput shape_;
  std::unique_ptr<Network> network_;
  std::vector<float> gradients_;  // 16-bit gradients, if any, come first in its memory
  std::vector<FlatRange> ranges_;
  std::vector<std::uint8_t> images_;
  std::vector<std::int32_t> labels_;
  std::vector<std::uint8_t> masks_;  // with GraphInput::masks; some pixels are ignored
  std::vector<float> weights_;
  std::vector<SampleId> samples_;
  Stream stream_;
};

}  // namespace lockstep
