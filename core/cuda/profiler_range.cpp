// SPDX-License-Identifier: Apache-2.0
#include "core/profiler_range.h"

#include <array>

#include <fmt/format.h>

// The CUDA emulator of tests/ has no NVTX.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define LOCKSTEP_HAS_NVTX 1
#endif

namespace lockstep {

#ifdef LOCKSTEP_HAS_NVTX

ProfilerRange::ProfilerRange(const char* name, std::int64_t index) {
  std::array<char, 64> text = {};
  if (index >= 0) fmt::format_to_n(text.data(), text.size() - 1, "{} {}", name, index);
  nvtxRangePushA(index >= 0 ? text.data() : name);
}

ProfilerRange::~ProfilerRange() { nvtxRangePop(); }

#else

ProfilerRange::ProfilerRange(const char*, std::int64_t) {}
ProfilerRange::~ProfilerRange() = default;

#endif

}  // namespace lockstep
