// SPDX-License-Identifier: Apache-2.0
//
// Linked in place of core/cuda in builds without CUDA.
#include "core/backend_factories.h"
#include "core/error.h"
#include "core/profiler_range.h"

namespace lockstep {
namespace {

[[noreturn]] void not_built() {
  throw ConfigError(
      "this build has no CUDA: configure with -DLOCKSTEP_CUDA=ON (preset cuda), or use --device cpu");
}

}  // namespace

ProfilerRange::ProfilerRange(const char*, std::int64_t) {}
ProfilerRange::~ProfilerRange() = default;

CudaStatus cuda_status() { return {.message = "configure with -DLOCKSTEP_CUDA=ON for it"}; }

std::unique_ptr<detail::StreamBackend> detail::make_cuda_stream(Device, StreamUse) { not_built(); }
std::unique_ptr<detail::EventBackend> detail::make_cuda_event(Device) { not_built(); }
std::unique_ptr<detail::TimedEventBackend> detail::make_cuda_timed_event(Device) { not_built(); }
detail::CudaAllocation detail::allocate_cuda(std::size_t, Device, MemoryKind) { not_built(); }
std::size_t detail::available_cuda_memory(Device) { not_built(); }
DeviceMemoryUse detail::cuda_memory_use(Device) { not_built(); }
void detail::count_cuda_memory(Device, std::ptrdiff_t) { not_built(); }

}  // namespace lockstep
