// SPDX-License-Identifier: Apache-2.0
//
// Dropout of NHWC activations on the device, with the masks of DropoutArguments: a feature's random number is
// that of its place in the sample in C, H, W order, whatever the layout.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/dropout.h"

namespace lockstep {

struct CudaDropout {
  DType type = DType::f32;
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t pixels = 1;            // of each channel; 1: plain features
  const SampleId* samples = nullptr;  // [batch], in device memory
  PhiloxKey key = {};
  float probability = 0;    // in [0, 1)
  const void* x = nullptr;  // [batch, pixels, channels]
  void* y = nullptr;        // may be x
};
void cuda_dropout(Stream& stream, const CudaDropout& arguments);

}  // namespace lockstep
