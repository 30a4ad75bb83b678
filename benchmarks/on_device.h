// SPDX-License-Identifier: Apache-2.0
//
// Copies a benchmark's input to device memory.
#pragma once

#include <vector>

#include "core/stream.h"
#include "core/tensor/buffer.h"

namespace lockstep {

template <typename T>
Buffer on_device(Stream& stream, const std::vector<T>& items) {
  Buffer memory(items.size() * sizeof(T), stream.device());
  stream.copy(memory.data(), items.data(), memory.bytes());
  stream.synchronize();
  return memory;
}

}  // namespace lockstep
