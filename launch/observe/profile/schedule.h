// SPDX-License-Identifier: Apache-2.0
//
// Selects the steps to profile: cycles of skipped steps (wait), observed but discarded steps, so that the
// setup cost of observing is not measured (warmup), and recorded steps (active), as in PyTorch's
// torch.profiler.schedule. Steps are those of the training, not of the process: a resumed training profiles
// the same steps as without the interruption.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct ProfileSettings {
  static constexpr const char* kOwnFolder = "auto";

  std::int64_t wait = 0;
  std::int64_t warmup = 0;
  std::int64_t active = 0;  // 0 disables profiling
  std::int64_t repeat = 0;  // cycles; 0: until training ends
  std::string dir = kOwnFolder;

  bool any() const { return active > 0; }
};

enum class ProfileStage { idle, warmup, active };

struct ProfiledStep {
  ProfileStage stage = ProfileStage::idle;
  bool last = false;  // the last active step of its cycle
};

// step: counted from 0.
ProfiledStep profiled_step(const ProfileSettings& settings, std::int64_t step);

}  // namespace lockstep
