// SPDX-License-Identifier: Apache-2.0
//
// A Network with its own gradient memory and a fixed batch of made-up images, for tests without
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
  // Every gradient as floats in plain order, by the parameter's name, in any precision.
  std::map<std::string, std::vector<float>> plain_gradients();
  TrainedMemory trained_memory() { return lockstep::trained_memory(*network_, ranges_); }
  Batch input();
  Stream& stream() { return stream_; }

  // Mean loss of the batch, in training mode. Evaluation then reads the statistics it left.
  double forward();
  // Forward and backward; gradients() then holds those of the mean loss.
  double forward_backward(Write write = Write::overwrite, GradientListener* listener = nullptr);

 private:
  GraphInput shape_;
  std::unique_ptr<Network> network_;
  std::vector<float> gradients_;  // its memory holds halves first where there are any
  std::vector<FlatRange> ranges_;
  std::vector<std::uint8_t> images_;
  std::vector<std::int32_t> labels_;
  std::vector<float> weights_;
  std::vector<SampleId> samples_;
  Stream stream_;
};

}  // namespace lockstep
