// SPDX-License-Identifier: Apache-2.0
//
// ProfilerRange: a named range of this thread's time in NVIDIA's profilers (NVTX), with the work enqueued in
// it. Does nothing in builds without CUDA.
#pragma once

#include <cstdint>

namespace lockstep {

class ProfilerRange {
 public:
  // "name", or "name index" for an index of 0 or more.
  explicit ProfilerRange(const char* name, std::int64_t index = -1);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace lockstep
