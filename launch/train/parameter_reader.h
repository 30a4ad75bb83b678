// SPDX-License-Identifier: Apache-2.0
//
// ParameterReader: reads parameters and their gradients as floats in host memory, one tensor at a time.
#pragma once

#include <span>
#include <vector>

#include "core/state.h"
#include "core/stream.h"
#include "core/tensor/parameter.h"
#include "models/network.h"

namespace lockstep {

class ParameterReader {
 public:
  // Both outlive this. Each call waits for the stream.
  ParameterReader(Network& network, Stream& stream) : network_(network), stream_(stream) {}

  // Elements in the order of the tensor's shape; valid until the next call.
  std::span<const float> read(const StateTensor& tensor);
  std::span<const float> read(const Parameter& parameter);
  std::span<const float> read_gradient(const Parameter& parameter);

 private:
  Network& network_;
  Stream& stream_;
  std::vector<float> wide_;  // a 16-bit gradient converted to fp32
  std::vector<float> plain_;
};

}  // namespace lockstep
