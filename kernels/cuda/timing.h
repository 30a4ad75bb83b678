// SPDX-License-Identifier: Apache-2.0
//
// How long work takes on a GPU, by CUDA events: for the choice among plans, and for the device's ceilings.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "core/buffer.h"
#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/cuda/affine.h"
#include "kernels/cuda/handle.h"
#include "kernels/cuda/libraries.h"
#include "kernels/kernel_choices.h"

namespace lockstep {

class CudaStopwatch {
 public:
  explicit CudaStopwatch(Device device);

  // Microseconds of one call of `enqueue`, which enqueues work on stream(): the median of some calls, after
  // one that warms up. Before each, and outside of what is timed, the device's L2 cache is overwritten:
  // called again and again on the same operands, the work would find them there, as it does in no step.
  // Blocks.
  double microseconds(const std::function<void()>& enqueue);
  // The same of a single call, which may pay for loading its kernels.
  double microseconds_of_one(const std::function<void()>& enqueue);
  Stream& stream() { return stream_; }

 private:
  using TimingEvent = Handle<cudaEvent_t, cudaEventDestroy>;
  struct Call {
    TimingEvent begin, end;
  };

  // Of each of so many calls, at most calls_.size().
  std::vector<double> measure(const std::function<void()>& enqueue, std::size_t count);

  Stream stream_;
  Buffer cache_;  // as large as the L2 cache
  std::vector<Call> calls_;
};

// Memory on the device with random numbers in [-1, 1): zeros could hide what real data costs.
Buffer random_memory(Stream& stream, std::size_t bytes, DType type);

// The products of a library that compute the same thing.
struct ProductSource {
  // The one of this name, without making the others; null function: only all() makes any.
  std::function<std::optional<AffineProduct>(const std::string& name)> find = {};
  std::function<std::vector<AffineProduct>()> all;  // best guess first, at least one
};
// The product that the choices prefer; times those that have no choice yet, on memory of its own. key says
// what is computed. A product is run once before it is chosen, unless choices are for planning alone: one
// that fails is left out, with a line in the log. Throws Error when all fail.
AffineProduct choose_product(KernelChoices& choices, const std::string& key, const ProductSource& source,
                             CudaLibraries& libraries, const CudaAffinePlan& plan);

}  // namespace lockstep
