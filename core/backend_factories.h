// SPDX-License-Identifier: Apache-2.0
//
// Factories that each device's part of core provides. The link decides whether the CUDA ones come from
// core/cuda or from core/no_cuda, whose functions throw ConfigError.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>

#include "core/stream.h"
#include "core/tensor/buffer.h"

namespace lockstep::detail {

std::unique_ptr<StreamBackend> make_cpu_stream(StreamUse use);
std::unique_ptr<EventBackend> make_cpu_event();
// Returns memory, zeroed unless it is untouched; release it with std::free. Throws MemoryError.
void* allocate_cpu(std::size_t bytes, MemoryKind kind);
// root: of the file system, for tests.
std::size_t available_cpu_memory(const std::filesystem::path& root = "/");

std::unique_ptr<StreamBackend> make_cuda_stream(Device device, StreamUse use);
std::unique_ptr<EventBackend> make_cuda_event(Device device);
std::unique_ptr<TimedEventBackend> make_cuda_timed_event(Device device);
// Zeroed memory and the function that frees it.
struct CudaAllocation {
  void* data = nullptr;
  std::function<void(void*)> release;
};
// Throws MemoryError.
CudaAllocation allocate_cuda(std::size_t bytes, Device device, MemoryKind kind);
std::size_t available_cuda_memory(Device device);
DeviceMemoryUse cuda_memory_use(Device device);
// Counts adopted memory as a Buffer's; negative when the Buffer releases it.
void count_cuda_memory(Device device, std::ptrdiff_t bytes);

}  // namespace lockstep::detail
