// SPDX-License-Identifier: Apache-2.0
#include "kernels/affine.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {

std::size_t AffineKernel::scratch_bytes() const {
  std::size_t bytes = plan_.forward.scratch_bytes;
  for (const auto* backward : {&plan_.backward_data, &plan_.backward_weights})
    if (*backward) bytes = std::max(bytes, (*backward)->scratch_bytes);
  return bytes;
}

std::string AffineKernel::choice(AffineDirection direction) const {
  if (direction == AffineDirection::forward) return plan_.forward.name;
  const auto& backward =
      direction == AffineDirection::backward_data ? plan_.backward_data : plan_.backward_weights;
  return backward ? backward->name : "";
}

void AffineKernel::forward(Stream& stream, const void* input, const void* weights, const float* bias,
                           void* output, void* scratch) const {
  plan_.forward.run(stream, {.x = input,
                             .w = weights,
                             .y = output,
                             .bias = const_cast<float*>(bias),  // only read
                             .scratch = scratch});
}

void AffineKernel::backward_data(Stream& stream, const void* output_gradient, const void* weights,
                                 void* input_gradient, void* scratch) const {
  CHECK(plan_.backward_data, "this kernel was planned without the gradient of its input");
  plan_.backward_data->run(stream,
                           {.x = input_gradient, .w = weights, .y = output_gradient, .scratch = scratch});
}

void AffineKernel::backward_weights(Stream& stream, const void* input, const void* output_gradient,
                                    void* weights_gradient, float* bias_gradient, Write write,
                                    void* scratch) const {
  CHECK(plan_.backward_weights, "this kernel was planned without the gradient of its weights");
  plan_.backward_weights->run(stream, {.x = input,
                                       .w = weights_gradient,
                                       .y = output_gradient,
                                       .bias = bias_gradient,
                                       .write = write,
                                       .scratch = scratch});
}

}  // namespace lockstep
