// SPDX-License-Identifier: Apache-2.0
//
// Measures the time of work on a GPU with CUDA events, to choose among plans and to measure the device's peak
// rates.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "core/tensor/dtype.h"
#include "kernels/cuda/affine.h"
#include "kernels/cuda/handle.h"
#include "kernels/cuda/libraries.h"
#include "kernels/kernel_choices.h"

namespace lockstep {

class CudaStopwatch {
 public:
  explicit CudaStopwatch(Device device);

  // Microseconds of one call of `enqueue`, which enqueues work on stream(): the median of several calls after
  // one warm-up call. Before each call, and outside the measured time, the device's L2 cache is overwritten,
  // because in a training step the operands are not in the cache either. Blocks the host.
  double microseconds(const std::function<void()>& enqueue);
  // As above, from a single call, which may include the time to load the kernels.
  double microseconds_of_one(const std::function<void()>& enqueue);
  Stream& stream() { return stream_; }

 private:
  using TimingEvent = Handle<cudaEvent_t, cudaEventDestroy>;
  struct Call {
    TimingEvent begin, end;
  };

  // Microseconds of each of `count` calls, at most calls_.size().
  std::vector<double> measure(const std::function<void()>& enqueue, std::size_t count);

  Stream stream_;
  Buffer cache_;  // as large as the L2 cache
  std::vector<Call> calls_;
};

// Device memory with random numbers in [-1, 1), because zeros could be faster than real data.
Buffer random_memory(Stream& stream, std::size_t bytes, DType type);

// The products of a library that compute the same problem.
struct ProductSource {
  // Makes only the product of this name; empty if there is none. Null function: only all() makes products.
  std::function<std::optional<AffineProduct>(const std::string& name)> find = {};
  std::function<std::vector<AffineProduct>()> all;  // best guess first, at least one
};
// Returns the product that `choices` selects. Candidates without a choice are timed on separate memory. key
// describes the problem. Unless choices are for planning only, a product is run once before it is chosen: one
// that fails is excluded with a warning. Throws Error if all fail.
AffineProduct choose_product(KernelChoices& choices, const std::string& key, const ProductSource& source,
                             CudaLibraries& libraries, const CudaAffinePlan& plan);

}  // namespace lockstep
