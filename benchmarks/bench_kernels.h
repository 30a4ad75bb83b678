// SPDX-License-Identifier: Apache-2.0
//
// Lockstep's own kernels as kernel_bench measures them: each on memory of a given size, with the least number
// of bytes that it must read and write.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "kernels/backend.h"

namespace lockstep {

// Memory for every kernel: three tensors of the element type, three fp32 arrays of the same length, and one
// flag. a, b, c and value hold noise, the same on every device.
class BenchArena {
 public:
  BenchArena(Device device, DType element, std::int64_t elements);

  std::int64_t count;
  DType type;
  Stream stream;
  Buffer a, b, c, value, momentum, second, flag;

  std::size_t tensor_bytes() const { return a.bytes(); }
};

struct BenchCall {
  std::function<void()> call;  // the arena must outlive it
  double bytes = 0;            // least number of bytes that it must read and write
  const void* result = nullptr;
  Layout result_layout;
};

struct BenchKernel {
  std::string name;
  bool any_block = false;  // uses Backend::set_block_threads
  std::function<BenchCall(Backend&, BenchArena&)> prepare;
};

std::vector<BenchKernel> bench_kernels();
// The subset for layers: batch norm, layer norm, softmax, pooling, image input, reorder, loss.
std::vector<BenchKernel> bench_layer_kernels();

// The result's elements in plain order.
std::vector<float> read_result(Backend& backend, Stream& stream, const BenchCall& call);

template <typename T>
T* as(const Buffer& memory) {
  return reinterpret_cast<T*>(memory.data());
}

}  // namespace lockstep
