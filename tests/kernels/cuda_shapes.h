// SPDX-License-Identifier: Apache-2.0
//
// Convolution shapes for tests of the CUDA backend: all arrangements of channels and groups, and odd sizes.
#pragma once

#include <vector>

#include "kernels/affine.h"

namespace lockstep {

inline std::vector<ConvolutionShape> cuda_test_convolutions() {
  return {{.batch = 3,
           .in_channels = 64,
           .in_height = 14,
           .in_width = 14,
           .out_channels = 32,
           .kernel = 3,
           .padding = 1},
          {.batch = 2,
           .in_channels = 64,
           .in_height = 15,
           .in_width = 13,
           .out_channels = 128,
           .kernel = 1,
           .stride = 2,
           .bias = true},
          {.batch = 2,
           .in_channels = 3,
           .in_height = 33,
           .in_width = 31,
           .out_channels = 64,
           .kernel = 7,
           .stride = 2,
           .padding = 3,
           .bias = true,
           .activation = Activation::relu},
          {.batch = 4,
           .in_channels = 1,
           .in_height = 12,
           .in_width = 12,
           .out_channels = 16,
           .kernel = 5,
           .padding = 2,
           .bias = true,
           .activation = Activation::relu6},
          {.batch = 2,
           .in_channels = 16,
           .in_height = 17,
           .in_width = 17,
           .out_channels = 24,
           .kernel = 3,
           .padding = 2,
           .dilation = 2,
           .activation = Activation::relu},
          {.batch = 3,
           .in_channels = 24,
           .in_height = 14,
           .in_width = 14,
           .out_channels = 24,
           .kernel = 3,
           .stride = 2,
           .padding = 1,
           .groups = 24},
          {.batch = 3,
           .in_channels = 32,
           .in_height = 7,
           .in_width = 7,
           .out_channels = 64,
           .kernel = 3,
           .padding = 1,
           .groups = 4,
           .bias = true}};
}

}  // namespace lockstep
