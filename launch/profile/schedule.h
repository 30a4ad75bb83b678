// SPDX-License-Identifier: Apache-2.0
//
// Which steps of a training are profiled: cycles of steps that are left alone (wait), observed in vain so
// that what observing itself sets up is not measured (warmup), and written down (active), as those of
// PyTorch's torch.profiler.schedule. Steps are those of the training, not of the process: one that goes on
// from a checkpoint profiles the steps that it would have profiled without the break.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct ProfileSettings {
  static constexpr const char* kOwnFolder = "auto";

  std::int64_t wait = 0;
  std::int64_t warmup = 0;
  std::int64_t active = 0;  // 0: nothing is profiled
  std::int64_t repeat = 0;  // cycles; 0: as long as training lasts
  std::string dir = kOwnFolder;

  bool any() const { return active > 0; }
};

enum class ProfileStage { idle, warmup, active };

struct ProfiledStep {
  ProfileStage stage = ProfileStage::idle;
  std::int64_t cycle = 0;  // from 0; of active steps and those that warm up
  bool last = false;       // active step of its cycle

  bool operator==(const ProfiledStep&) const = default;
};

// Of a step counted from 0.
ProfiledStep profiled_step(const ProfileSettings& settings, std::int64_t step);

}  // namespace lockstep
