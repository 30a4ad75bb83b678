// SPDX-License-Identifier: Apache-2.0
//
// ProfilerRange: time of this thread that NVIDIA's profilers show under a name (NVTX), with the work that is
// enqueued in it. Nothing in builds without CUDA.
#pragma once

#include <cstdint>

namespace lockstep {

class ProfilerRange {
 public:
  // "name", or "name index" for an index from 0 on.
  explicit ProfilerRange(const char* name, std::int64_t index = -1);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace lockstep
