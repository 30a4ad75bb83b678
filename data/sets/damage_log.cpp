// SPDX-License-Identifier: Apache-2.0
#include "data/sets/damage_log.h"

#include "core/log.h"

namespace lockstep {
namespace {

constexpr std::int64_t kNamed = 5;

bool is_power_of_ten(std::int64_t count) {
  while (count % 10 == 0) count /= 10;
  return count == 1;
}

}  // namespace

void DamageLog::add(std::int64_t sample, std::string_view message) {
  std::int64_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!samples_.insert(sample).second) return;
    count = static_cast<std::int64_t>(samples_.size());
  }
  if (count <= kNamed) log::warning("{}", message);
  if (count == kNamed) log::warning("further samples are counted but not named");
  if (count > kNamed && is_power_of_ten(count)) log::warning("{} samples so far are {}", count, fate_);
}

std::int64_t DamageLog::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(samples_.size());
}

}  // namespace lockstep
