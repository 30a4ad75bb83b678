// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/own_time.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep {

OwnTime::~OwnTime() {
  if (file_ >= 0) close(file_);
}

// The file has "ON_CORE WITHOUT_CORE TIMES"; the first two are in nanoseconds.
std::int64_t OwnTime::without_core_ns() const {
  std::array<char, 96> text = {};
  const ssize_t bytes = file_ < 0 ? -1 : pread(file_, text.data(), text.size(), 0);
  if (bytes <= 0) return 0;
  const char* end = text.data() + bytes;
  const char* number = std::find<const char*>(text.data(), end, ' ');
  std::int64_t ns = 0;
  if (number != end) std::from_chars(number + 1, end, ns);
  return ns;
}

void OwnTime::enter(Phase phase) {
  const bool waits = phase == Phase::exposed_communication || phase == Phase::device_wait;
  const bool computes = phase == Phase::forward || phase == Phase::backward || phase == Phase::optimizer;
  if (started_ && (waits != waits_ || computes != computes_)) seconds();
  waits_ = waits;
  computes_ = computes;
}

double OwnTime::seconds() {
  if (!started_) {
    started_ = true;
    file_ = open(schedstat_.c_str(), O_RDONLY | O_CLOEXEC);
    now_ns_ = now_ns();
    without_core_ns_ = without_core_ns();
    return 0;
  }
  const std::int64_t now = now_ns(), without_core = without_core_ns();
  if (!computes_) outside_compute_ns_ += without_core - without_core_ns_;
  if (!waits_) own_ns_ += std::max<std::int64_t>(0, now - now_ns_ - (without_core - without_core_ns_));
  now_ns_ = now;
  without_core_ns_ = without_core;
  return static_cast<double>(own_ns_) * 1e-9;
}

}  // namespace lockstep
