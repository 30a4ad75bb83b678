// SPDX-License-Identifier: Apache-2.0
//
// What each device's part of core offers to the shared types; the link decides whether the CUDA ones are
// core/cuda's or core/no_cuda's, which throw ConfigError.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "core/buffer.h"
#include "core/stream.h"

namespace lockstep::detail {

std::unique_ptr<StreamBackend> make_cpu_stream(StreamUse use);
std::unique_ptr<EventBackend> make_cpu_event();
// Zeroed, for std::free. Throws MemoryError.
void* allocate_cpu(std::size_t bytes);
std::size_t available_cpu_memory();

std::unique_ptr<StreamBackend> make_cuda_stream(Device device, StreamUse use);
std::unique_ptr<EventBackend> make_cuda_event(Device device);
std::unique_ptr<TimedEventBackend> make_cuda_timed_event(Device device);
// Zeroed memory and how to free it.
struct CudaAllocation {
  void* data = nullptr;
  std::function<void(void*)> release;
};
// Throws MemoryError.
CudaAllocation allocate_cuda(std::size_t bytes, Device device, MemoryKind kind);
std::size_t available_cuda_memory(Device device);
DeviceMemoryUse cuda_memory_use(Device device);
// Counts memory that a Buffer adopts, or gives back (negative), as a Buffer's.
void count_cuda_memory(Device device, std::ptrdiff_t bytes);

}  // namespace lockstep::detail
