// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/schedule.h"

namespace lockstep {

ProfiledStep profiled_step(const ProfileSettings& settings, std::int64_t step) {
  if (!settings.any()) return {};
  const std::int64_t length = settings.wait + settings.warmup + settings.active;
  const std::int64_t cycle = step / length, place = step % length;
  if ((settings.repeat > 0 && cycle >= settings.repeat) || place < settings.wait) return {};
  if (place < settings.wait + settings.warmup) return {.stage = ProfileStage::warmup};
  return {.stage = ProfileStage::active, .last = place == length - 1};
}

}  // namespace lockstep
