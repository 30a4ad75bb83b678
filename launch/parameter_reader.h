// SPDX-License-Identifier: Apache-2.0
//
// ParameterReader: parameters and their gradients as plain floats of the host, one tensor after the other.
#pragma once

#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/parameter.h"
#include "core/state.h"
#include "core/stream.h"
#include "models/network.h"

namespace lockstep {

class ParameterReader {
 public:
  // Both outlive it. The stream is waited for in each call.
  ParameterReader(Network& network, Stream& stream) : network_(network), stream_(stream) {}

  // In the order of the tensor's shape; until the next call.
  std::span<const float> read(const StateTensor& tensor);
  std::span<const float> read(const Parameter& parameter);
  std::span<const float> read_gradient(const Parameter& parameter);

 private:
  Network& network_;
  Stream& stream_;
  Buffer staging_;
  Buffer wide_;  // half gradients in fp32
  std::vector<float> plain_;
};

}  // namespace lockstep
